//! What the tests of this crate share: the machine of the page-frame allocator's tests, pages, and devices'
//! calls.

#![allow(dead_code, reason = "each test binary uses its own part")]

#[path = "../../../frame/tests/common/mod.rs"]
mod machine;

#[allow(unused_imports, reason = "each test binary uses its own part")]
pub(crate) use machine::{Machine, Random, assert_sound, frames, frames_of, get, put, run_on};

use quire_arch::{Order, Pfn, Platform};
use quire_frame::Frames;
use quire_swap::{DeviceError, DeviceMemory, Direction, PageIo, Submitted, SwapDevice};

/// A page's words.
pub(crate) type Page = [u64; 512];

/// Pages that differ in how they compress.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Look {
    Zero,
    Small,
    Pattern,
    /// So many eighths of it are random.
    Mixed(u64),
}

impl Look {
    /// Any.
    pub(crate) fn any(random: &mut Random) -> Self {
        match random.below(8) {
            0 => Self::Zero,
            1 => Self::Small,
            2 => Self::Pattern,
            _ => Self::Mixed(random.below(9)),
        }
    }

    /// A page that looks like this.
    pub(crate) fn page(self, random: &mut Random) -> Page {
        match self {
            Self::Zero => [0; 512],
            Self::Small => [random.below(1 << 20); 512],
            Self::Pattern => [random.next() | 1 << 59; 512],
            Self::Mixed(eighths) => {
                let base = random.next() & 0xffff;
                core::array::from_fn(|word| {
                    let noise = (word as u64 / 4) % 8 < eighths;
                    if noise { random.next() } else { base + word as u64 / 16 }
                })
            }
        }
    }
}

/// Puts `page` in the frame.
pub(crate) fn write_frame(frames: &Frames<Machine>, pfn: Pfn, page: &Page) {
    // SAFETY: the frame is the test's.
    unsafe { frames.platform().direct_map(pfn).cast::<Page>().write(*page) };
}

/// What is in the frame.
pub(crate) fn read_frame(frames: &Frames<Machine>, pfn: Pfn) -> Page {
    // SAFETY: the frame is the test's.
    unsafe { frames.platform().direct_map(pfn).cast::<Page>().read() }
}

/// Submits a request.
pub(crate) fn submit<P: Platform>(
    frames: &Frames<P>,
    device: &(impl SwapDevice<P> + ?Sized),
    io: PageIo,
) -> Submitted {
    // SAFETY: the frames are the test's, which frees none while a device has it.
    unsafe { device.submit(DeviceMemory::new(frames), io) }
}

/// Reads or writes one page on a device that does it at once.
pub(crate) fn io(
    frames: &Frames<Machine>,
    device: &impl SwapDevice<Machine>,
    direction: Direction,
    slot: u64,
    pfn: Pfn,
) -> Result<(), DeviceError> {
    match submit(frames, device, PageIo { direction, slot, pfn, pages: 1 }) {
        Submitted::Done(result) => result,
        other => panic!("a device that is synchronous returned {other:?}"),
    }
}

/// A frame for tests, given back by [`put`].
pub(crate) fn frame(frames: &Frames<Machine>) -> Pfn {
    get(frames, Order::ZERO)
}
