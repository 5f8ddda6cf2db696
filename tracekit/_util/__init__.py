"""What every room may use: files, HTML, the machine, native code, pools of workers, text."""
