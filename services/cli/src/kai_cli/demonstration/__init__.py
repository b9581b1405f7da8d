"""The demonstration: `kai demo`, its living work and its report."""
