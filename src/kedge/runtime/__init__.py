"""What every controller is written against."""
