//! Calls from tracepoints: which events are wanted, and what their samples hold.
//!
//! The sample of a call's entry has the registers of the program and the word on top of its stack, as a stop
//! before the call would show them.

use super::tracepoint::Offsets;
use super::word;
use crate::calls::WITHOUT_STOP;
use perf_event_open_sys::bindings as perf;
use std::ffi::CString;

/// A call that a thread has begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BegunCall {
    pub(crate) number: u64,
    pub(crate) args: [u64; 6],
    /// The address after the instruction that makes it.
    pub(crate) instruction: u64,
    /// The word on top of the stack; 0 if it could not be read.
    pub(crate) on_stack: u64,
}

/// The registers of a sample, in the order in which it has them.
const REGISTERS: [u32; 8] = [
    perf::PERF_REG_X86_DX,
    perf::PERF_REG_X86_SI,
    perf::PERF_REG_X86_DI,
    perf::PERF_REG_X86_SP,
    perf::PERF_REG_X86_IP,
    perf::PERF_REG_X86_R8,
    perf::PERF_REG_X86_R9,
    perf::PERF_REG_X86_R10,
];
/// [`REGISTERS`] as a mask, which perf wants.
pub(super) const REGISTER_MASK: u64 = {
    let (mut mask, mut place) = (0, 0);
    while place < REGISTERS.len() {
        mask |= 1 << REGISTERS[place];
        place += 1;
    }
    mask
};
/// Bytes of the stack in a sample.
pub(super) const STACK_BYTES: u32 = 8;

/// A filter: the kernel makes samples only of calls that need no stop.
pub(super) fn filter() -> CString {
    let numbers: Vec<String> = WITHOUT_STOP.iter().map(|number| format!("id == {number}")).collect();
    CString::new(numbers.join(" || ")).unwrap_or_default()
}

/// A filter: the kernel makes samples only of locks taken for writing, under which one call at a time changes
/// an address space.
pub(super) fn lock_filter() -> CString {
    c"write == 1 && success == 1".to_owned()
}

/// The bytes of a tracepoint's fields, and what follows them in a sample. They begin with their length, 32
/// bits.
pub(super) fn fields(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(u32::from_ne_bytes(*length) as usize)
}

/// The call that a thread has begun; `None` if it is another one, or one of another ABI with the same number.
pub(super) fn begun(bytes: &[u8], [number, args]: Offsets) -> Option<BegunCall> {
    let (fields, rest) = fields(bytes)?;
    let number = word(fields, number)?;
    let mut all = [0; 6];
    for (place, arg) in all.iter_mut().enumerate() {
        *arg = word(fields, args + 8 * place)?;
    }
    let (abi, registers) = (word(rest, 0)?, 8);
    let register = |place: usize| word(rest, registers + 8 * place);
    let [dx, si, di] = [register(0)?, register(1)?, register(2)?];
    let [r8, r9, r10] = [register(5)?, register(6)?, register(7)?];
    // Calls of the i386 ABI have their arguments in other registers.
    let is_native = abi == u64::from(perf::PERF_SAMPLE_REGS_ABI_64) && all == [di, si, dx, r10, r8, r9];
    if !is_native || !WITHOUT_STOP.contains(&number.cast_signed()) {
        return None;
    }
    let stack = registers + 8 * REGISTERS.len();
    // The bytes that were asked for, the bytes, and how many of them could be read.
    let could_be_read = word(rest, stack + 16) == Some(u64::from(STACK_BYTES));
    let on_stack = word(rest, stack + 8).filter(|_| could_be_read).unwrap_or(0);
    Some(BegunCall { number, args: all, instruction: register(4)?, on_stack })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The bytes of a sample from the fields on.
    fn sample(number: i64, args: [u64; 6], abi: u64, registers: [u64; 8], stack: &[u64]) -> Vec<u8> {
        let words = [&[77, number as u64][..], &args, &[0]].concat();
        let mut bytes = Vec::from((words.len() as u32 * 8 - 4).to_ne_bytes());
        bytes.extend(words.iter().flat_map(|word| word.to_ne_bytes()));
        // The fields end in the middle of the last word, so that what follows is aligned.
        bytes.truncate(bytes.len() - 4);
        bytes.extend([&[abi][..], &registers, stack].concat().iter().flat_map(|word| word.to_ne_bytes()));
        bytes
    }

    #[test]
    fn a_sample_has_what_a_stop_shows() {
        let anonymous = (libc::MAP_PRIVATE | libc::MAP_ANONYMOUS) as u64;
        let args = [1, 2, 3, anonymous, 5, 6];
        let registers = [3, 2, 1, 0x7000, 0x5000, 5, 6, anonymous];
        let read = |number, args, abi, registers, stack: &[u64]| {
            begun(&sample(number, args, abi, registers, stack), [8, 16])
        };
        let call = |on_stack| {
            let number = libc::SYS_mmap as u64;
            Some(BegunCall { number, args, instruction: 0x5000, on_stack })
        };
        assert_eq!(read(libc::SYS_mmap, args, 2, registers, &[8, 99, 8]), call(99));
        assert_eq!(read(libc::SYS_mmap, args, 2, registers, &[8, 99, 0]), call(0), "the stack is paged out");
        assert_eq!(read(libc::SYS_mmap, args, 2, registers, &[0]), call(0), "there is no stack");
        assert_eq!(read(libc::SYS_mmap, args, 1, registers, &[8, 99, 8]), None, "a 32-bit program");
        let others = [3, 2, 9, 0x7000, 0x5000, 5, 6, anonymous];
        assert_eq!(read(libc::SYS_mmap, args, 2, others, &[8, 99, 8]), None, "int 0x80");
        assert_eq!(read(libc::SYS_mlock, args, 2, registers, &[8, 99, 8]), None, "it stops");
        let of_file = [1, 2, 3, libc::MAP_PRIVATE as u64, 5, 6];
        let registers = [3, 2, 1, 0x7000, 0x5000, 5, 6, libc::MAP_PRIVATE as u64];
        let found = read(libc::SYS_mmap, of_file, 2, registers, &[8, 99, 8]);
        assert!(found.is_some_and(|call| call.args == of_file), "it stops before it, not at its end");
        assert_eq!(begun(&[1, 2, 3], [8, 16]), None);
    }

    #[test]
    fn registers_are_in_the_order_of_their_numbers() {
        assert!(REGISTERS.is_sorted());
        assert_eq!(REGISTER_MASK.count_ones() as usize, REGISTERS.len());
    }
}
