//! A Linux process that makes memory calls on demand.
//!
//! The child is a fork of the test. It runs nothing but the loop in [`serve`]: no allocation, no library call, raw
//! system calls only, so that its address space changes by what it is asked to do and by nothing else. Requests and
//! replies go through one shared page and a futex.

use core::arch::{asm, global_asm};
use core::sync::atomic::{AtomicI64, AtomicU8, AtomicU32, AtomicU64, Ordering};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

/// The pseudo call that reads 8 bytes at its first argument.
pub(crate) const READ: u32 = 10_000;
/// The pseudo call that writes its second argument there.
pub(crate) const WRITE: u32 = 10_001;
const EXIT: u32 = 10_002;

const FORK: u32 = 57;
const EXIT_GROUP: u32 = 231;
const KILL: u32 = 62;
const WAIT4: u32 = 61;
const FUTEX: u32 = 202;
const PRCTL: u32 = 157;
const SIGACTION: u32 = 13;
const MMAP: u32 = 9;
const MUNMAP: u32 = 11;
const MINCORE: u32 = 27;

/// Most pages of one `mincore`.
pub(crate) const VECTOR: usize = 1 << 16;

/// What parent and child share.
#[repr(C)]
struct Board {
    request: AtomicU32,
    reply: AtomicU32,
    number: AtomicU32,
    args: [AtomicU64; 6],
    result: AtomicI64,
    signal: AtomicU32,
    code: AtomicU32,
    vector: [AtomicU8; VECTOR],
}

/// What a request came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Reply {
    /// The value as the kernel returns it, failures as small negative numbers.
    Value(i64),
    /// A signal with its code.
    Signal(u32, u32),
}

/// A raw system call.
///
/// # Safety
///
/// What the call does to this process's memory must be what the caller may do.
unsafe fn syscall(number: u32, args: [u64; 6]) -> i64 {
    let result;
    // SAFETY: the convention of x86-64 Linux; what the call does is the caller's promise.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") i64::from(number) => result,
            in("rdi") args[0], in("rsi") args[1], in("rdx") args[2],
            in("r10") args[3], in("r8") args[4], in("r9") args[5],
            lateout("rcx") _, lateout("r11") _,
        );
    }
    result
}

fn futex(word: &AtomicU32, operation: u64, value: u32, timeout: Option<&[u64; 2]>) {
    let timeout = timeout.map_or(0, |time| core::ptr::from_ref(time).addr() as u64);
    let word = core::ptr::from_ref(word).addr() as u64;
    // SAFETY: a futex call reads the word and the time, and changes no memory.
    unsafe { syscall(FUTEX, [word, operation, u64::from(value), timeout, 0, 0]) };
}

static FAULT_SIGNAL: AtomicU32 = AtomicU32::new(0);
static FAULT_CODE: AtomicU32 = AtomicU32::new(0);
static RECOVER_AT: AtomicU64 = AtomicU64::new(0);

global_asm!(".globl quire_test_restorer", "quire_test_restorer:", "mov eax, 15", "syscall", "ud2");

unsafe extern "C" {
    fn quire_test_restorer();
}

/// Notes the signal and lets the program go on behind the access.
unsafe extern "C" fn on_fault(signal: i32, info: *const u8, context: *mut u8) {
    const SI_CODE: usize = 8;
    const RIP: usize = 40 + 16 * 8;
    FAULT_SIGNAL.store(signal as u32, Ordering::Relaxed);
    // SAFETY: the kernel passes a siginfo and a ucontext, in which these fields have these places on x86-64.
    unsafe {
        FAULT_CODE.store(info.add(SI_CODE).cast::<u32>().read(), Ordering::Relaxed);
        context.add(RIP).cast::<u64>().write(RECOVER_AT.load(Ordering::Relaxed));
    }
}

/// Reads or writes 8 bytes at `addr`; a refused access leaves its signal in [`FAULT_SIGNAL`].
///
/// # Safety
///
/// `addr` is nothing that Rust code uses, and [`on_fault`] is installed.
unsafe fn access(addr: u64, write: Option<u64>) -> u64 {
    FAULT_SIGNAL.store(0, Ordering::Relaxed);
    let mut value = write.unwrap_or(0);
    let slot = RECOVER_AT.as_ptr();
    // SAFETY: the caller's promise; on a fault the handler continues at the label with all registers kept.
    unsafe {
        if write.is_some() {
            asm!("lea {tmp}, [rip + 2f]", "mov [{slot}], {tmp}", "mov [{addr}], {value}", "2:",
                tmp = out(reg) _, slot = in(reg) slot, addr = in(reg) addr, value = in(reg) value);
        } else {
            asm!("lea {tmp}, [rip + 2f]", "mov [{slot}], {tmp}", "mov {value}, [{addr}]", "2:",
                tmp = out(reg) _, slot = in(reg) slot, addr = in(reg) addr, value = inout(reg) value);
        }
    }
    value
}

/// The child's life.
fn serve(board: &Board) -> ! {
    const PR_SET_PDEATHSIG: u64 = 1;
    const PR_SET_THP_DISABLE: u64 = 41;
    let handler: [u64; 4] = [
        on_fault as *const () as u64,
        // SA_SIGINFO and SA_RESTORER.
        4 | 0x0400_0000,
        quire_test_restorer as *const () as u64,
        0,
    ];
    // SAFETY: the child's own settings; the handler's layout is the kernel's.
    unsafe {
        syscall(PRCTL, [PR_SET_PDEATHSIG, 9, 0, 0, 0, 0]);
        syscall(PRCTL, [PR_SET_THP_DISABLE, 1, 0, 0, 0, 0]);
        for signal in [7, 11] {
            syscall(SIGACTION, [signal, handler.as_ptr().addr() as u64, 0, 8, 0, 0]);
        }
    }
    let mut done = 0;
    loop {
        let request = board.request.load(Ordering::Acquire);
        if request == done {
            futex(&board.request, 0, done, None);
            continue;
        }
        let number = board.number.load(Ordering::Relaxed);
        let mut args = [0; 6];
        for (arg, sent) in args.iter_mut().zip(&board.args) {
            *arg = sent.load(Ordering::Relaxed);
        }
        board.signal.store(0, Ordering::Relaxed);
        // SAFETY: the parent asks for nothing that touches memory of this program itself.
        let result = unsafe {
            match number {
                EXIT => syscall(EXIT_GROUP, [0; 6]),
                READ => access(args[0], None) as i64,
                WRITE => access(args[0], Some(args[1])) as i64,
                MINCORE => {
                    args[2] = board.vector.as_ptr().addr() as u64;
                    syscall(number, args)
                }
                _ => syscall(number, args),
            }
        };
        if number == READ || number == WRITE {
            board.signal.store(FAULT_SIGNAL.load(Ordering::Relaxed), Ordering::Relaxed);
            board.code.store(FAULT_CODE.load(Ordering::Relaxed), Ordering::Relaxed);
        }
        board.result.store(result, Ordering::Relaxed);
        done = request;
        board.reply.store(done, Ordering::Release);
        futex(&board.reply, 1, 1, None);
    }
}

/// The child, from the parent's side.
pub(crate) struct Child {
    pid: i64,
    board: &'static Board,
}

impl Child {
    pub(crate) fn start() -> Self {
        let len = size_of::<Board>() as u64;
        // SAFETY: a new shared anonymous mapping (PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS).
        let board = unsafe { syscall(MMAP, [0, len, 3, 0x21, u64::MAX, 0]) };
        assert!(board > 0, "no shared page: {board}");
        // SAFETY: mapped above, zeroed (a valid board), and unmapped only when the `Child` goes.
        let board: &'static Board = unsafe { &*core::ptr::with_exposed_provenance::<Board>(board as usize) };
        // SAFETY: the child runs `serve` only, which needs no lock that another thread could have held.
        let pid = unsafe { syscall(FORK, [0; 6]) };
        if pid == 0 {
            serve(board);
        }
        assert!(pid > 0, "fork failed: {pid}");
        Self { pid, board }
    }

    /// Makes one call in the child.
    pub(crate) fn call(&self, number: u32, args: [u64; 6]) -> Reply {
        let board = self.board;
        for (slot, arg) in board.args.iter().zip(args) {
            slot.store(arg, Ordering::Relaxed);
        }
        board.number.store(number, Ordering::Relaxed);
        let turn = board.request.load(Ordering::Relaxed).wrapping_add(1);
        board.request.store(turn, Ordering::Release);
        futex(&board.request, 1, 1, None);
        let begin = Instant::now();
        loop {
            let reply = board.reply.load(Ordering::Acquire);
            if reply == turn {
                break;
            }
            futex(&board.reply, 0, reply, Some(&[1, 0]));
            assert!(begin.elapsed() < Duration::from_secs(60), "the child died in call {number} {args:x?}");
        }
        match board.signal.load(Ordering::Relaxed) {
            0 => Reply::Value(board.result.load(Ordering::Relaxed)),
            signal => Reply::Signal(signal, board.code.load(Ordering::Relaxed)),
        }
    }

    /// What the last `mincore` wrote: which of `pages` pages are in memory.
    pub(crate) fn residency(&self, pages: u64) -> Vec<bool> {
        self.board.vector[..pages as usize].iter().map(|page| page.load(Ordering::Relaxed) & 1 != 0).collect()
    }

    /// A text of `/proc/PID`.
    pub(crate) fn text(&self, file: &str) -> String {
        let mut path = String::new();
        let _ = write!(path, "/proc/{}/{file}", self.pid);
        std::fs::read_to_string(path).expect("the child is there")
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let pid = self.pid as u64;
        // SAFETY: the child is ours, and the shared pages are used by nobody once it is gone.
        unsafe {
            syscall(KILL, [pid, 9, 0, 0, 0, 0]);
            syscall(WAIT4, [pid, 0, 0, 0, 0, 0]);
            let board = core::ptr::from_ref(self.board).expose_provenance() as u64;
            syscall(MUNMAP, [board, size_of::<Board>() as u64, 0, 0, 0, 0]);
        }
    }
}
