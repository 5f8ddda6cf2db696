"""What is true across ranks: steps, matched operations, clocks."""
