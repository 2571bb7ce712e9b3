//! Deriving the access of a fault from the instruction that raised it.
//!
//! The software event has the address and the instruction pointer. The instruction itself is read from the
//! process when the sample is taken out of its ring buffer: before a process ends or executes a new program,
//! the ring buffers are emptied.

use crate::sys::{Tid, memory};
use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, OpAccess};
use quire_trace::event::{Access, Mode};
use std::collections::HashMap;

/// The longest instruction.
const LONGEST: usize = 15;

/// Finds accesses; caches what it found for each instruction.
#[derive(Debug, Default)]
pub(crate) struct AccessFinder {
    known: HashMap<(Tid, u64), Touch>,
}

impl AccessFinder {
    /// The access of a fault at `addr` by the instruction at `ip` of process `pid`. Unknown are those of the
    /// kernel, whose instructions cannot be read and which copies in both directions; those of instructions
    /// that copy; and those of instructions that are no longer mapped.
    pub(crate) fn find(&mut self, pid: Tid, tid: Tid, mode: Mode, addr: u64, ip: u64) -> Access {
        match mode {
            Mode::Kernel => Access::Unknown,
            Mode::User if is_fetch(addr, ip) => Access::Execute,
            Mode::User => {
                let touch = self.known.get(&(pid, ip)).copied().or_else(|| {
                    let mut bytes = [0; LONGEST];
                    let mut read = memory::read(tid, ip, &mut bytes);
                    if read == 0 && pid != tid {
                        // The thread may have ended; its process has not.
                        read = memory::read(pid, ip, &mut bytes);
                    }
                    let touch = decode(&bytes[..read], ip)?;
                    self.known.insert((pid, ip), touch);
                    Some(touch)
                });
                match touch {
                    Some(Touch::Reads) => Access::Read,
                    Some(Touch::Writes) => Access::Write,
                    Some(Touch::Copies) | None => Access::Unknown,
                }
            }
        }
    }

    /// A process has a new program or has ended.
    pub(crate) fn forget_process(&mut self, pid: Tid) {
        self.known.retain(|(known, _), _| *known != pid);
    }
}

/// The processor gives the address of the fetch itself: that of the instruction, or the next page if the
/// instruction reaches into it.
fn is_fetch(addr: u64, ip: u64) -> bool {
    addr == ip || (addr.is_multiple_of(4096) && addr > ip && addr - ip < LONGEST as u64)
}

/// What an instruction does with memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Touch {
    Reads,
    Writes,
    /// It reads in one place and writes in another; which of them faulted is not known.
    Copies,
}

/// What an instruction does; `None` if it cannot be decoded.
fn decode(bytes: &[u8], ip: u64) -> Option<Touch> {
    let mut decoder = Decoder::with_ip(64, bytes, ip, DecoderOptions::NONE);
    let mut instruction = Instruction::default();
    decoder.decode_out(&mut instruction);
    if instruction.is_invalid() {
        return None;
    }
    let mut factory = InstructionInfoFactory::new();
    let used = factory.info(&instruction).used_memory();
    let writes = used.iter().any(|memory| {
        matches!(
            memory.access(),
            OpAccess::Write | OpAccess::CondWrite | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        )
    });
    let reads = used.iter().any(|memory| matches!(memory.access(), OpAccess::Read | OpAccess::CondRead));
    Some(match (reads, writes) {
        (true, true) => Touch::Copies,
        (_, true) => Touch::Writes,
        (_, false) => Touch::Reads,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instructions_are_told_apart() {
        let cases: [(&[u8], Touch); 7] = [
            (&[0x48, 0x8b, 0x07], Touch::Reads),        // mov rax, [rdi]
            (&[0x48, 0x89, 0x07], Touch::Writes),       // mov [rdi], rax
            (&[0xf0, 0x48, 0xff, 0x07], Touch::Writes), // lock inc qword [rdi]
            (&[0x50], Touch::Writes),                   // push rax
            (&[0xf3, 0xaa], Touch::Writes),             // rep stosb
            (&[0xf3, 0xa4], Touch::Copies),             // rep movsb
            (&[0x48, 0x3b, 0x07], Touch::Reads),        // cmp rax, [rdi]
        ];
        for (bytes, touch) in cases {
            assert_eq!(decode(bytes, 0x1000), Some(touch), "{bytes:x?}");
        }
        assert_eq!(decode(&[], 0x1000), None);
    }

    #[test]
    fn fetches_are_told_from_loads() {
        assert!(is_fetch(0x1234, 0x1234));
        assert!(is_fetch(0x2000, 0x1ffc));
        assert!(!is_fetch(0x2008, 0x1ffc));
        assert!(!is_fetch(0x1000, 0x1ffc));
    }
}
