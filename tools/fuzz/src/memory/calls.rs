//! Memory calls from bytes.

use super::values::{Areas, Values};
use crate::bytes::Bytes;
use quire_arch::{PAGE_SIZE, PagingFormat, Platform};
use quire_host::HostPlatform;
use quire_mm::abi::{self, CallNumber, CallOutcome, FaultIn, Files, OpenFile};
use quire_mm::space::{Errno, MappedFile, Space, VmFlags};

/// The open files of every process: the descriptor says what it is like.
struct SixFiles;

impl<P: Platform> Files<P> for SixFiles {
    fn open_file(&self, descriptor: i32) -> Option<OpenFile> {
        (0..6).contains(&descriptor).then_some(OpenFile {
            id: descriptor as u64,
            readable: descriptor != 2,
            writable: descriptor != 1,
            refused: (descriptor == 4).then_some(Errno::ENODEV),
            write_refused: (descriptor == 5).then_some(Errno::EPERM),
            exec_refused: (descriptor == 3).then_some(Errno::EPERM),
            max_bytes: if descriptor == 4 { MappedFile::DEVICE_BYTES } else { MappedFile::REGULAR_BYTES },
            huge_alignment: descriptor == 5,
            vm_flags: VmFlags::empty(),
        })
    }
}

/// One call as a program makes it.
#[derive(Debug)]
pub(super) struct Call {
    number: CallNumber,
    args: [u64; 6],
}

impl Call {
    pub(super) fn make<F: PagingFormat>(&self, space: &Space<'_, HostPlatform<F>>) -> CallOutcome {
        abi::call(space, self.number, self.args, &SixFiles, &FaultIn(space))
    }
}

/// What decoding a call needs to know of earlier calls.
#[derive(Default, Debug)]
pub(super) struct Calls {
    pub(super) areas: Areas,
    last_len: u64,
}

const ANONYMOUS: u64 = 0x20;
/// Mostly private memory, else shared memory, and files: private, shared, shared with validation.
const KINDS: [u64; 8] = [2 | ANONYMOUS, 2 | ANONYMOUS, 2 | ANONYMOUS, 2 | ANONYMOUS, 1 | ANONYMOUS, 2, 1, 3];
/// FIXED, FIXED_NOREPLACE, a hint.
const PLACES: [u64; 4] = [0x10, 0x10, 0x10_0000, 0];
/// GROWSDOWN, LOCKED, NORESERVE, POPULATE, NONBLOCK, STACK, 32BIT, and one that does not exist.
const EXTRAS: [u64; 8] = [0x100, 0x2000, 0x4000, 0x8000, 0x1_0000, 0x2_0000, 0x40, 0x800_0000];
const ADVICE: &[u64] = &[4, 4, 8, 22, 23, 23, 24, 0, 1, 10, 11, 12, 14, 15, 16, 18, 18, 19, 20, 21, 9, 102];
/// With the raw call, numbers that are not built.
const NUMBERS: &[u32] = &[9, 10, 11, 12, 25, 26, 27, 28, 149, 150, 151, 325, 329, 0, 30, 216, 453, 462];

impl Calls {
    /// The call that `what`, below 41, and the next bytes stand for.
    pub(super) fn decode<F: PagingFormat>(&mut self, what: u8, shift: u64, bytes: &mut Bytes<'_>) -> Call {
        let values = Values::<F>::new(&self.areas);
        let (number, args) = match what {
            0..=9 => (9, mmap(&values, bytes)),
            19..=25 => (25, self.mremap::<F>(bytes)),
            31 | 32 => (12, [values.address(bytes), 0, 0, 0, 0, 0]),
            38 => (151, [u64::from(bytes.byte() & 15), 0, 0, 0, 0, 0]),
            39 => (152, [0; 6]),
            40 => (bytes.pick(NUMBERS), [(); 6].map(|()| bytes.number())),
            _ => {
                let (addr, len) = (values.address(bytes), values.length(bytes));
                let (number, third) = match what {
                    10..=13 => (11, 0),
                    14..=18 => (10, protection(bytes)),
                    26..=30 => (28, bytes.pick(ADVICE)),
                    33 => (27, 0),
                    34 => (26, u64::from(bytes.byte() & 15)),
                    35 => (149, 0),
                    36 => (325, u64::from(bytes.byte() & 3)),
                    _ => (150, 0),
                };
                (number, [addr, len, third, 0, 0, 0])
            }
        };
        let mut args = args;
        args[0] = args[0].wrapping_add(shift);
        self.last_len = args[1];
        Call { number: CallNumber::from_raw(number), args }
    }

    /// Mostly all of the last mapping, to the landmarks, so that moves meet.
    fn mremap<F: PagingFormat>(&self, bytes: &mut Bytes<'_>) -> [u64; 6] {
        let values = Values::<F>::new(&self.areas);
        let addr = values.address(bytes);
        let how = bytes.byte();
        let old = if how & 0x80 == 0 { self.last_len } else { values.length(bytes) };
        let new = if how & 0x40 == 0 { old } else { values.length(bytes) };
        let flags = u64::from(how & 7);
        let target = if flags > 1 { values.address(bytes) } else { 0 };
        let flags = if how & 0x38 == 0x38 { flags | 1 << 35 } else { flags };
        [addr, old, new, flags, target, 0]
    }

    /// Records the result of `call`.
    pub(super) fn note<F: PagingFormat>(&mut self, call: &Call, value: u64) {
        match call.number {
            CallNumber::Mmap | CallNumber::Mremap => {
                assert!(
                    value.is_multiple_of(PAGE_SIZE) && value < F::USER_END.0,
                    "{call:x?} returns {value:#x}"
                );
                self.areas.note(value);
            }
            CallNumber::Brk => self.areas.note(value & !(PAGE_SIZE - 1)),
            _ => assert_eq!(value, 0, "{call:x?}"),
        }
    }
}

fn mmap<F: PagingFormat>(values: &Values<'_, F>, bytes: &mut Bytes<'_>) -> [u64; 6] {
    let how = bytes.byte();
    let mut flags = KINDS[usize::from(how & 7)] | PLACES[usize::from(how >> 3 & 3)];
    let addr = if how & 0x20 == 0 { values.address(bytes) } else { 0 };
    let len = values.length(bytes);
    let protection = if how & 0x40 == 0 { 3 } else { protection(bytes) };
    if how & 0x80 != 0 {
        let extra = bytes.byte();
        for (bit, flag) in EXTRAS.into_iter().enumerate() {
            flags |= if extra & (1 << bit) == 0 { 0 } else { flag };
        }
    }
    let (descriptor, offset) = if flags & ANONYMOUS == 0 {
        let file = bytes.byte();
        (u64::from(file & 7), if file < 128 { u64::from(file >> 3) * PAGE_SIZE } else { bytes.number() })
    } else {
        (u64::MAX, 0)
    };
    [addr, len, protection, flags, descriptor, offset]
}

/// The low three bits, and seldom one that means something else or nothing.
fn protection(bytes: &mut Bytes<'_>) -> u64 {
    let byte = bytes.byte();
    let extra = if byte >= 240 { 1 << (bytes.byte() & 31) } else { 0 };
    u64::from(byte & 7) | extra
}
