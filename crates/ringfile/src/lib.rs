//! Disk I/O over Linux io_uring.
