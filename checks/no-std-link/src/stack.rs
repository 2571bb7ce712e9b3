//! How much of its stack a call uses: it runs on a stack that was painted before, and where the paint is gone
//! the call was.
//!
//! What is measured is what was done, not what could be done. So `depths` does much in each call.

use crate::runtime::Output;
use core::arch::global_asm;
use core::cell::UnsafeCell;
use core::fmt::Write;
use core::hint::black_box;
use core::mem::MaybeUninit;
use core::sync::atomic::{AtomicUsize, Ordering};

/// The most that a call of a release build may use: half of a kernel's stack of 16 KiB. Interrupts and what
/// called need the rest.
const LIMIT: usize = 8 << 10;
const BYTES: usize = 256 << 10;
const PAINT: u8 = 0xa5;

global_asm!(
    // Takes the top of a stack, what runs on it, and the argument of that.
    ".globl on_stack",
    "on_stack:",
    "push rbp",
    "mov rbp, rsp",
    "mov rsp, rdi",
    "mov rdi, rdx",
    "call rsi",
    "mov rsp, rbp",
    "pop rbp",
    "ret",
);

unsafe extern "C" {
    fn on_stack(top: *mut u8, run: extern "C" fn(*mut ()), argument: *mut ());
}

#[repr(align(16))]
struct Painted(UnsafeCell<[u8; BYTES]>);

// SAFETY: one thread at a time runs on it: CPU 0 of the machine.
unsafe impl Sync for Painted {}

static STACK: Painted = Painted(UnsafeCell::new([0; BYTES]));
/// The deepest call so far.
static DEEPEST: AtomicUsize = AtomicUsize::new(0);
/// Calls that used more than they may.
static TOO_DEEP: AtomicUsize = AtomicUsize::new(0);

extern "C" fn run<W: FnMut()>(work: *mut ()) {
    // SAFETY: `used_by` passes its own, which lives on the other stack meanwhile.
    unsafe { (*work.cast::<W>())() }
}

/// Bytes of stack that `work` uses. Not to be called from within `work`.
fn used_by<W: FnMut()>(work: &mut W) -> usize {
    let base = STACK.0.get().cast::<u8>();
    // SAFETY: no thread runs on the stack. The work gets its end, which is aligned as the array is, and
    // panics do not unwind.
    unsafe {
        base.write_bytes(PAINT, BYTES);
        on_stack(base.add(BYTES), run::<W>, core::ptr::from_mut(work).cast());
        // Volatile: the compiler does not know who wrote there.
        BYTES - (0..BYTES).take_while(|&at| base.add(at).read_volatile() == PAINT).count()
    }
}

/// Runs `work`, and notes how deep it was.
pub(crate) fn shallow<R>(name: &str, work: impl FnOnce() -> R) -> R {
    let (mut work, mut result) = (Some(work), MaybeUninit::uninit());
    let used = used_by(&mut || {
        result.write(work.take().expect("it is run once")());
    });
    DEEPEST.fetch_max(used, Ordering::Relaxed);
    // Builds without optimisation have frames of any size.
    let too_deep = used > LIMIT && !cfg!(debug_assertions);
    TOO_DEEP.fetch_add(usize::from(too_deep), Ordering::Relaxed);
    let mut out = Output(if too_deep { 2 } else { 1 });
    let mark = if too_deep { " TOO DEEP" } else { "" };
    writeln!(out, "stack: {used:>6} {name}{mark}").expect("an open descriptor");
    // SAFETY: `used_by` has run the work, once.
    unsafe { result.assume_init() }
}

/// A call with a frame that is too large is seen.
pub(crate) fn check_measure() {
    #[inline(never)]
    fn large() {
        black_box([1u8; LIMIT + 1]);
    }
    #[inline(never)]
    fn small() {
        black_box([1u8; 64]);
    }
    assert!(used_by(&mut large) > LIMIT, "a frame beyond the limit is not seen");
    assert!(used_by(&mut small) < 1024, "a small frame is taken for a large one");
}

/// All calls were shallow enough.
pub(crate) fn check_all() {
    let (deepest, too_deep) = (DEEPEST.load(Ordering::Relaxed), TOO_DEEP.load(Ordering::Relaxed));
    assert_eq!(too_deep, 0, "calls with more stack than they may use; the deepest has {deepest} bytes");
    writeln!(Output(1), "deepest stack: {deepest}").expect("stdout");
}
