"""No opinions: errors, identifiers, options, the clock and the disk."""
