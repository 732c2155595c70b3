"""A query's text becomes SELECTs of private rows, to be released, and one SELECT over what they release."""
