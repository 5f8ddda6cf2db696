"""What the machine says of itself."""

import pytest

from tracekit._util import machine

X86_64 = """processor\t: 0
vendor_id\t: GenuineIntel
cpu family\t: 6
model\t\t: 143
model name\t: Xeon
stepping\t: 8
cpu MHz\t\t: {mhz}
flags\t\t: fpu sse2 avx512f
bogomips\t: 4200.00

processor\t: 1
flags\t\t: fpu
"""
ARM64 = "processor\t: 0\nBogoMIPS\t: 243.75\nFeatures\t: fp asimd\nCPU part\t: 0xd0c\n\nprocessor\t: 1\n"


@pytest.fixture
def said(tmp_path, monkeypatch):
    """What the system says of the processor, as a file."""
    monkeypatch.setattr(machine, "SYSTEM", tmp_path)
    return tmp_path / "cpuinfo"


def test_a_processor_is_what_it_can_do_not_how_fast_it_runs_now(said):
    said.write_text(X86_64.format(mhz=2100.0))
    slow = machine.processor()
    said.write_text(X86_64.format(mhz=3800.0))
    assert machine.processor() == slow == "GenuineIntel\n6\n143\n8\nfpu sse2 avx512f"
    said.write_text(X86_64.format(mhz=2100.0).replace("avx512f", "avx2"))
    assert machine.processor() != slow


def test_an_arm_processor(said):
    said.write_text(ARM64)
    assert machine.processor() == "0xd0c\nfp asimd"


def test_a_system_that_does_not_say_what_the_processor_can_do(said):
    assert machine.processor() is None
    said.write_text("processor\t: 0\nmodel name\t: something else\n")
    assert machine.processor() is None
