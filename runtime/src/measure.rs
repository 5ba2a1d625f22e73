//! What a device can do, measured: the numbers of a compiler's device profile.
