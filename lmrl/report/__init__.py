"""Tables, pictures and pages about results."""
