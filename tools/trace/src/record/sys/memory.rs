//! Reading a followed process's memory.

use super::Tid;
use nix::sys::uio::{RemoteIoVec, process_vm_readv};
use nix::unistd::Pid;
use std::io::IoSliceMut;

/// Reads bytes; fewer than asked for if not all of them are mapped. Costs one system call and stops no
/// thread.
pub(crate) fn read(tid: Tid, addr: u64, into: &mut [u8]) -> usize {
    let remote = RemoteIoVec { base: addr as usize, len: into.len() };
    process_vm_readv(Pid::from_raw(tid), &mut [IoSliceMut::new(into)], &[remote]).unwrap_or(0)
}

/// Reads a 64-bit word.
pub(crate) fn read_u64(tid: Tid, addr: u64) -> Option<u64> {
    let mut bytes = [0; 8];
    (read(tid, addr, &mut bytes) == 8).then(|| u64::from_le_bytes(bytes))
}

/// Reads `N` 64-bit words.
pub(crate) fn read_words<const N: usize>(tid: Tid, addr: u64) -> Option<[u64; N]> {
    let mut words = [0; N];
    for (place, word) in words.iter_mut().enumerate() {
        *word = read_u64(tid, addr.wrapping_add(8 * place as u64))?;
    }
    Some(words)
}

/// Reads a string that ends with a zero byte, at most `limit` bytes of it.
pub(crate) fn read_string(tid: Tid, addr: u64, limit: usize) -> Option<Box<[u8]>> {
    let mut bytes = vec![0; limit];
    let read = read(tid, addr, &mut bytes);
    let end = bytes[..read].iter().position(|byte| *byte == 0)?;
    bytes.truncate(end);
    Some(bytes.into())
}
