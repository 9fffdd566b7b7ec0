"""Is a program distributed right? Run it for real, watched, and compare its workers."""
