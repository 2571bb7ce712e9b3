//! The ring that the kernel writes samples to.

use perf_event_open_sys::bindings as perf;
use std::io;
use std::os::fd::RawFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

const PAGE: usize = 4096;
/// Bytes of a record's head: kind, misc and length.
const RECORD_HEAD: usize = 8;

/// A mapped ring: a page of control fields, then the samples.
#[derive(Debug)]
pub(super) struct Ring {
    event: RawFd,
    control: NonNull<perf::perf_event_mmap_page>,
    size: usize,
    /// Holds a record that wraps around.
    scratch: Vec<u8>,
}

impl Ring {
    /// Maps the ring of an event. A smaller one is taken if the kernel does not allow so much locked memory.
    pub(super) fn map(event: RawFd, mut size: usize, smallest: usize) -> io::Result<Self> {
        loop {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            // SAFETY: a new mapping at an address of the kernel's choice touches no memory of ours.
            let addr = unsafe {
                libc::mmap(std::ptr::null_mut(), size + PAGE, protection, libc::MAP_SHARED, event, 0)
            };
            match NonNull::new(addr.cast()).filter(|_| addr != libc::MAP_FAILED) {
                Some(control) => return Ok(Self { event, control, size, scratch: Vec::new() }),
                None if size > smallest => size /= 2,
                None => return Err(io::Error::last_os_error()),
            }
        }
    }

    /// The event whose ring this is.
    pub(super) fn event(&self) -> RawFd {
        self.event
    }

    /// Calls `record` with the kind, the misc bits and the body of each record, and frees their space.
    pub(super) fn drain(&mut self, mut record: impl FnMut(u32, u16, &[u8])) {
        let control = self.control.as_ptr();
        // SAFETY: the control page stays mapped as long as `self` lives. The kernel moves the head and only
        // reads the tail; both are aligned 64-bit fields, shared by atomic access.
        let (head, tail) = unsafe {
            (
                AtomicU64::from_ptr(&raw mut (*control).data_head),
                AtomicU64::from_ptr(&raw mut (*control).data_tail),
            )
        };
        let end = head.load(Ordering::Acquire);
        let mut at = tail.load(Ordering::Relaxed);
        // SAFETY: the samples follow the control page and are `size` bytes. The kernel does not write between
        // tail and head, and only that part is read below.
        let data = unsafe { std::slice::from_raw_parts(control.cast::<u8>().add(PAGE), self.size) };
        while end - at >= RECORD_HEAD as u64 {
            let start = (at % self.size as u64) as usize;
            // Records are multiples of 8 bytes, so a head never wraps around.
            let Some(header) = data[start..].first_chunk::<RECORD_HEAD>() else { break };
            let kind = u32::from_ne_bytes([header[0], header[1], header[2], header[3]]);
            let misc = u16::from_ne_bytes([header[4], header[5]]);
            let len = usize::from(u16::from_ne_bytes([header[6], header[7]]));
            if len < RECORD_HEAD || len as u64 > end - at {
                break;
            }
            let first = len.min(self.size - start);
            if first == len {
                record(kind, misc, &data[start + RECORD_HEAD..start + len]);
            } else {
                self.scratch.clear();
                self.scratch.extend_from_slice(&data[start..]);
                self.scratch.extend_from_slice(&data[..len - first]);
                record(kind, misc, &self.scratch[RECORD_HEAD..]);
            }
            at += len as u64;
        }
        tail.store(at, Ordering::Release);
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `map` with this length, and nothing borrows from it any more.
        unsafe { libc::munmap(self.control.as_ptr().cast(), self.size + PAGE) };
    }
}
