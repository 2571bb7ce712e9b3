//! The oracle's processes.
//!
//! The template is a fork of the comparing process that unmapped everything but the executable's image, a
//! stack and the board. For each program it forks the first process of that program, which makes the calls,
//! may fork further ones, and records the state after each operation. None of them uses a library,
//! allocates or panics: only the program changes their address spaces.

use super::access::{self, Accessed};
use super::board::{
    Board, DONE, LEFT_OUT, MAKES_AREA, MAKES_SEGMENT, NO_AREA, NO_PROCESS, RawOp, SLOTS, Slot, UNSAFE,
    WAKE_EVERY,
};
use super::file;
use super::ipc;
use super::memfd;
use super::observe::{for_each_gap, observe};
use super::prepare;
use super::raw::{Plain, exit, futex_wait, futex_wake, has_ended, plain, syscall};
use super::texts::Files;
use crate::program::Call;
use crate::program::names::{
    CAP_IPC_LOCK, CAP_IPC_OWNER, CAP_SYS_RAWIO, F_ADD_SEALS, F_GET_SEALS, MAP_ANONYMOUS, MAP_FIXED,
    MAP_FIXED_NOREPLACE, MAP_NORESERVE, MAP_PRIVATE, MOST_MADE, MOST_NAME, MOST_RANGE_BYTES,
    MOST_SEGMENT_BYTES, MREMAP_FIXED, REFUSED_SEGMENT_BYTES, SEEK_DATA, SEEK_HOLE, SHM_REMAP, memfd_at,
};
use core::sync::atomic::Ordering::{Acquire, Relaxed, Release};

const PAGE: u64 = 4096;
/// The bits of an argument that is an `int`.
const INT: u64 = u32::MAX as u64;

/// Ends the process if the one that compares has ended.
fn exit_if_orphaned() {
    if has_ended(prepare::COMPARING_PIDFD) {
        exit();
    }
}

/// The main loop of the template, on its own stack.
pub(super) unsafe extern "C" fn template(board: *const Board) -> ! {
    // SAFETY: the board is mapped in this process for good.
    let board = unsafe { &*board };
    prepare::measure(board);
    let mut seen = 0;
    board.over.store(u32::MAX, Release);
    futex_wake(&board.over);
    loop {
        let command = board.command.load(Acquire);
        if board.quit.load(Relaxed) != 0 {
            exit();
        }
        if command == seen {
            futex_wait(&board.command, seen);
            exit_if_orphaned();
            continue;
        }
        seen = command;
        file::renew(board);
        // SAFETY: the fork goes on in `run` and does not come back here.
        let first = unsafe { syscall(libc::SYS_fork, [0; 6]) };
        if first == 0 {
            // So that all processes of the program can be ended together.
            plain(Plain::Setpgid, 0, 0);
            prepare::allow_large_folios(true);
            ipc::begin(board);
            run(board, 0);
        }
        bury(board, first);
        board.over.store(seen, Release);
        futex_wake(&board.over);
        futex_wake(&board.ready);
    }
}

/// Waits for all processes of a program. The template is their subreaper, whatever their parents
/// are.
fn bury(board: &Board, first: i64) {
    if first < 0 {
        board.died.store(u32::MAX, Relaxed);
    }
    loop {
        let status = board.scratch[0].as_ptr().addr() as u64;
        // SAFETY: the kernel writes the status to the scratch words.
        let gone = unsafe { syscall(libc::SYS_wait4, [u64::MAX, status, 0, 0, 0, 0]) };
        if gone < 0 {
            return;
        }
        let status = board.scratch[0].load(Relaxed) as u32;
        if status != 0 && board.died.load(Relaxed) == 0 {
            board.died.store(status, Relaxed);
            // The others would wait for the dead one for ever.
            plain(Plain::Kill, first.wrapping_neg().cast_unsigned(), libc::SIGKILL as u64);
        }
    }
}

/// The main loop of process `me` of a program.
fn run(board: &Board, mut me: u32) -> ! {
    let mut files = Files::open();
    ipc::note_process(board, me);
    let count = board.op_count.load(Relaxed);
    loop {
        let step = board.turn.load(Acquire);
        if step >= count || board.stop.load(Relaxed) != 0 {
            exit();
        }
        let op = &board.ops[step as usize];
        let process = op.process.load(Relaxed);
        let alive = board.alive.load(Relaxed);
        let lives = alive >> process & 1 != 0;
        // One of the living passes over what a process was to do that does not exist: two could meet there.
        let whose = if lives { process } else { alive.trailing_zeros() };
        if whose != me {
            futex_wait(&board.turn, step);
            exit_if_orphaned();
            continue;
        }
        while step.wrapping_sub(board.consumed.load(Acquire)) >= SLOTS {
            if board.stop.load(Relaxed) != 0 {
                exit();
            }
            futex_wait(&board.consumed, step - SLOTS);
            exit_if_orphaned();
        }
        let slot = &board.slots[(step % SLOTS) as usize];
        slot.observed.store(0, Relaxed);
        slot.signal.store(0, Relaxed);
        slot.cut.store(0, Relaxed);
        let mut ends = false;
        if lives {
            match prepared(board, op) {
                Err(state) => slot.state.store(state, Relaxed),
                Ok(args) => {
                    slot.state.store(DONE, Relaxed);
                    let number = op.number.load(Relaxed);
                    if number == Call::Fork.number() {
                        let child = fork(board, args[0] as u32);
                        if child == 0 {
                            me = args[0] as u32;
                            files = Files::open();
                            ipc::note_process(board, me);
                            continue;
                        }
                        slot.value.store(child.min(0), Relaxed);
                    } else if number == Call::Exit.number() {
                        leave(board);
                        board.alive.fetch_and(!(1 << me), Relaxed);
                        slot.value.store(0, Relaxed);
                        ends = true;
                    } else {
                        make(board, slot, number, args);
                        let (makes, value) = (op.makes.load(Relaxed), slot.value.load(Relaxed));
                        if makes == MAKES_SEGMENT && value >= 0 || makes == MAKES_AREA && value > 0 {
                            let value = value.cast_unsigned() + u64::from(makes == MAKES_SEGMENT);
                            board.areas[op.id.load(Relaxed) as usize].store(value, Relaxed);
                        }
                    }
                }
            }
            if !ends {
                observe(board, slot, &files, op.want.load(Relaxed));
            }
        } else {
            slot.state.store(NO_PROCESS, Relaxed);
        }
        pass_on(board, step, count, me, ends);
        if ends {
            exit();
        }
    }
}

/// Unmaps all memory but the process's own. What others share with it must be theirs alone before the next
/// operation: whether a write takes a copy of a part of a large folio can be seen, and when Linux gets to the
/// end of a process cannot.
fn leave(board: &Board) {
    for_each_gap(board, |start, end| {
        // SAFETY: nothing of the process itself lies between what is its own.
        unsafe { syscall(libc::SYS_munmap, [start, end - start, 0, 0, 0, 0]) };
    });
}

/// Hands the next operation to the process that makes it, and the finished ones to the reader.
fn pass_on(board: &Board, step: u32, count: u32, me: u32, ends: bool) {
    let next = step + 1;
    // Release: a process that sees the turn (or the slot) sees what this process wrote.
    board.ready.store(next, Release);
    board.turn.store(next, Release);
    let last = next >= count;
    let other = last || ends || board.ops[next as usize].process.load(Relaxed) != me;
    if other {
        futex_wake(&board.turn);
    }
    if last || next.is_multiple_of(WAKE_EVERY) {
        futex_wake(&board.ready);
    }
}

/// The arguments of an operation, or why it cannot be made.
fn prepared(board: &Board, op: &RawOp) -> Result<[u64; 6], u32> {
    if op.left_out.load(Relaxed) != 0 {
        return Err(LEFT_OUT);
    }
    let mut args = [0; 6];
    let mut at = 0;
    while at < 6 {
        let area = op.areas[at].load(Relaxed);
        let base = match area {
            0 => 0,
            _ => match board.areas[area as usize - 1].load(Relaxed) {
                0 => return Err(NO_AREA),
                base => base,
            },
        };
        args[at] = base.wrapping_add(op.words[at].load(Relaxed));
        at += 1;
    }
    if is_safe(board, op.number.load(Relaxed), &args) { Ok(args) } else { Err(UNSAFE) }
}

/// Whether a range leaves alone what belongs to the process itself.
fn is_free(board: &Board, addr: u64, len: u64) -> bool {
    let Some(end) = addr.checked_add(len) else {
        // It wraps, so it is refused.
        return true;
    };
    let end = end.saturating_add(PAGE - 1) & !(PAGE - 1);
    let mut at = 0;
    while at < board.own_count.load(Relaxed) as usize {
        let own = &board.own[at];
        if own[0].load(Relaxed) < end && (addr & !(PAGE - 1)) < own[1].load(Relaxed) {
            return false;
        }
        at += 1;
    }
    true
}

/// Whether an operation leaves alone what belongs to the process itself.
fn is_safe(board: &Board, number: u32, args: &[u64; 6]) -> bool {
    let [addr, len, third, fourth, fifth, _] = *args;
    // Compared one by one: a table of them would be a call into a library.
    if number == Call::Mmap.number() {
        return fourth & (MAP_FIXED | MAP_FIXED_NOREPLACE) == 0 || is_free(board, addr, len);
    }
    if number == Call::Mremap.number() {
        // Of length 0 it maps what is at the address once more.
        let old = if len == 0 { 1 } else { len };
        return is_free(board, addr, old) && (fourth & MREMAP_FIXED == 0 || is_free(board, fifth, third));
    }
    if number == Call::Read.number() || number == Call::Write.number() || number == Call::Execute.number() {
        return is_free(board, addr, 8);
    }
    if number == Call::MincoreInto.number() {
        let refused = addr.checked_add(len).is_none() || third >= 1 << 47;
        // Quire does not have the residency of the process's own mappings.
        return refused || is_free(board, third, len.div_ceil(PAGE)) && is_free(board, addr, len);
    }
    if number == Call::Mincore.number() && len > (super::board::TEXT_BYTES as u64) * PAGE {
        // Longer than the vector may be: only when it is refused before.
        return addr.checked_add(len).is_none() || len > 1 << 47;
    }
    if number == Call::Pread.number() || number == Call::Pwrite.number() {
        return is_free(board, len, third);
    }
    if number == Call::Fallocate.number() {
        // A longer range may need all the memory that there is.
        return fourth.cast_signed() <= MOST_RANGE_BYTES.cast_signed();
    }
    if number == Call::MemfdCreate.number() {
        let few = board.made_count.load(Relaxed) < MOST_MADE;
        return memfd_at(third).is_some() && addr <= MOST_NAME && few;
    }
    if number == Call::Reopen.number() || number == Call::Dup2.number() {
        return memfd_at(addr).is_some() && memfd_at(len).is_some() && third <= 2;
    }
    if number == Call::Close.number() {
        return memfd_at(addr).is_some();
    }
    if number == Call::Shmget.number() {
        return len <= MOST_SEGMENT_BYTES || len >= REFUSED_SEGMENT_BYTES;
    }
    if number == Call::Shmat.number() {
        // Without that flag nothing is replaced.
        return third & SHM_REMAP == 0 || is_free(board, len & !(PAGE - 1), MOST_SEGMENT_BYTES);
    }
    if number == Call::Shmctl.number() {
        return ipc::is_command(len & INT);
    }
    if number == Call::Shmdt.number() {
        return true;
    }
    if number == Call::Lseek.number() {
        return memfd_at(addr).is_some() && matches!(third & INT, SEEK_DATA | SEEK_HOLE);
    }
    if number == Call::Fcntl.number() {
        return matches!(len & INT, F_ADD_SEALS | F_GET_SEALS);
    }
    let without_range = [
        Call::Ftruncate,
        Call::Fsync,
        Call::Brk,
        Call::Mlockall,
        Call::Munlockall,
        Call::Fork,
        Call::Exit,
        Call::Setrlimit,
        Call::Prctl,
        Call::Crowd,
    ];
    let mut at = 0;
    while at < without_range.len() {
        if number == without_range[at].number() {
            return true;
        }
        at += 1;
    }
    number == Call::SetPrivileges.number() || is_free(board, addr, len)
}

fn fork(board: &Board, number: u32) -> i64 {
    // Set before the fork, so that both sides see it.
    board.alive.fetch_or(1 << number, Relaxed);
    // SAFETY: both sides go on in `run`.
    let child = unsafe { syscall(libc::SYS_fork, [0; 6]) };
    if child < 0 {
        board.alive.fetch_and(!(1 << number), Relaxed);
    }
    child
}

/// Makes a call or an access that concerns this process only.
fn make(board: &Board, slot: &Slot, number: u32, mut args: [u64; 6]) {
    // SAFETY: `is_safe` was asked: nothing that Rust code uses is touched.
    let accessed = unsafe {
        if number == Call::Read.number() {
            access::read(args[0])
        } else if number == Call::Write.number() {
            access::write(args[0], args[1])
        } else if number == Call::Execute.number() {
            access::execute(args[0])
        } else if number == Call::Fill.number() {
            fill(args[0], args[1], args[2])
        } else {
            let value = if number == Call::Setrlimit.number() {
                set_limit(board, args[0], args[1])
            } else if number == Call::SetPrivileges.number() {
                set_privileges(board, args[0])
            } else if number == Call::MemfdCreate.number() {
                memfd::create(board, args)
            } else if number == Call::Shmctl.number() {
                ipc::control(board, args)
            } else if number == Call::Reopen.number() {
                memfd::reopen(args)
            } else if number == Call::Crowd.number() {
                crowd(args[0], |call, args| syscall(call.number().into(), args))
            } else {
                if number == Call::Mincore.number() {
                    args[2] = slot.text.as_ptr().addr() as u64;
                }
                // The same call of Linux, with the program's own vector.
                let into = number == Call::MincoreInto.number();
                if into || number == Call::Mincore.number() {
                    // What readahead has brought in, and when, cannot be compared.
                    file::bring_in(board);
                }
                syscall(if into { Call::Mincore.number() } else { number }.into(), args)
            };
            if number == Call::Madvise.number() {
                prepare::drain_batches();
            }
            Accessed { value: value.cast_unsigned(), signal: 0, code: 0 }
        }
    };
    slot.value.store(accessed.value.cast_signed(), Relaxed);
    slot.signal.store(accessed.signal, Relaxed);
    slot.code.store(accessed.code, Relaxed);
}

/// Writes to each page of a range.
///
/// # Safety
///
/// As [`access::write`].
unsafe fn fill(addr: u64, len: u64, value: u64) -> Accessed {
    let mut pages = 0;
    while pages * PAGE < len {
        // SAFETY: the caller's promise.
        let accessed =
            unsafe { access::write(addr.wrapping_add(pages * PAGE), value.wrapping_add(pages << 8)) };
        if accessed.signal != 0 {
            return Accessed { value: pages, ..accessed };
        }
        pages += 1;
    }
    Accessed { value: pages, signal: 0, code: 0 }
}

/// [`Call::Crowd`], with `make` as the process's `mmap` and `munmap`.
#[inline(always)]
pub(crate) fn crowd(spare: u64, mut make: impl FnMut(Call, [u64; 6]) -> i64) -> i64 {
    const EEXIST: i64 = -17;
    const FLAGS: u64 = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE;
    let (mut at, mut made) = (0, 0);
    while at < prepare::MOST_CROWD {
        let addr = prepare::CROWD_AT + 2 * PAGE * at;
        let value = make(Call::Mmap, [addr, PAGE, 0, FLAGS, u64::MAX, 0]);
        if value < 0 && value != EEXIST {
            break;
        }
        made += i64::from(value > 0);
        at += 1;
    }
    let mut rest = spare;
    at = 0;
    while rest > 0 && at < prepare::MOST_CROWD {
        let addr = prepare::CROWD_AT + 2 * PAGE * at;
        // It has the protection already: this only tells whether there is a mapping.
        if make(Call::Mprotect, [addr, PAGE, 0, 0, 0, 0]) == 0 {
            make(Call::Munmap, [addr, PAGE, 0, 0, 0, 0]);
            rest -= 1;
        }
        at += 1;
    }
    made
}

/// Sets a soft limit, up to the hard one.
fn set_limit(board: &Board, resource: u64, value: u64) -> i64 {
    let (soft, hard) = (&board.scratch[8], &board.scratch[9]);
    let limits = soft.as_ptr().addr() as u64;
    // SAFETY: the two scratch words are the kernel's `struct rlimit64`.
    unsafe {
        let result = syscall(libc::SYS_prlimit64, [0, resource, 0, limits, 0, 0]);
        if result < 0 {
            return result;
        }
        soft.store(if value < hard.load(Relaxed) { value } else { hard.load(Relaxed) }, Relaxed);
        syscall(libc::SYS_prlimit64, [0, resource, limits, 0, 0, 0])
    }
}

/// Makes those of the capabilities in `wanted` effective that are permitted, and the others that programs
/// have not.
fn set_privileges(board: &Board, wanted: u64) -> i64 {
    const VERSION_3: u64 = 0x2008_0522;
    const ALL: u64 = CAP_IPC_LOCK | CAP_IPC_OWNER | CAP_SYS_RAWIO;
    let (header, data) = (&board.scratch[16], &board.scratch[17]);
    header.store(VERSION_3, Relaxed);
    let (head, body) = (header.as_ptr().addr() as u64, data.as_ptr().addr() as u64);
    // SAFETY: the header is one word, the data three words of the scratch; the first word has what is
    // effective in its low half and what is permitted in its high half.
    unsafe {
        let result = syscall(libc::SYS_capget, [head, body, 0, 0, 0, 0]);
        if result < 0 {
            return result;
        }
        let found = data.load(Relaxed);
        data.store(found & !ALL | found >> 32 & wanted & ALL, Relaxed);
        syscall(libc::SYS_capset, [head, body, 0, 0, 0, 0])
    }
}
