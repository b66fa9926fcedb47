//! Workers: health, load, placement.
