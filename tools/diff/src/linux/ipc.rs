//! SysV shared memory of a program: in a name space of its own, which ends with it.

use super::board::{Board, Slot};
use super::raw::{Plain, plain, syscall};
use crate::observation::Segment;
use crate::program::MOST_PROCESSES;
use crate::program::names::{
    IPC_RMID, IPC_SET, IPC_STAT, MOST_SEGMENTS, NO_OWNER, SHM_INFO, SHM_LOCK, SHM_STAT, SHM_STAT_ANY,
    SHM_UNLOCK,
};
use core::sync::atomic::AtomicU64;
use core::sync::atomic::Ordering::Relaxed;

const MODE_BITS: u64 = 0xffff;

/// Whether a process may have a name space of its own: the template gets one.
pub(super) fn try_one(board: &Board) {
    let made = plain(Plain::Unshare, libc::CLONE_NEWIPC as u64, 0);
    board.facts.has_ipc.store(u32::from(made == 0), Relaxed);
}

/// Gives the first process of a program a name space, if the program has segments.
pub(super) fn begin(board: &Board) {
    if board.uses_ipc.load(Relaxed) != 0 {
        plain(Plain::Unshare, libc::CLONE_NEWIPC as u64, 0);
    }
}

/// Notes the number that Linux has for the calling process, which is process `me` of the program.
pub(super) fn note_process(board: &Board, me: u32) {
    board.pids[me as usize].store(plain(Plain::Getpid, 0, 0), Relaxed);
}

/// Whether programs may make the command.
pub(super) fn is_command(command: u64) -> bool {
    matches!(
        command,
        IPC_RMID | IPC_SET | IPC_STAT | SHM_LOCK | SHM_UNLOCK | SHM_STAT | SHM_INFO | SHM_STAT_ANY
    )
}

/// The kernel's `struct shmid_ds`, or `struct shm_info`.
fn words(board: &Board) -> &[AtomicU64] {
    &board.scratch[45..59]
}

/// `shmctl` with the words as its buffer.
fn call(board: &Board, id: u64, command: u64) -> i64 {
    let buffer = words(board).as_ptr().addr() as u64;
    // SAFETY: the kernel reads and writes no more than the words.
    unsafe { syscall(libc::SYS_shmctl, [id, command, buffer, 0, 0, 0]) }
}

/// [`Call::Shmctl`](crate::program::Call::Shmctl).
pub(super) fn control(board: &Board, [id, command, mode, ..]: [u64; 6]) -> i64 {
    // User and group in the upper half of the first word and the lower one of the second, then the mode.
    let words = words(board);
    // SAFETY: the calls take no arguments.
    let (user, group) = unsafe { (syscall(libc::SYS_geteuid, [0; 6]), syscall(libc::SYS_getegid, [0; 6])) };
    let user = if mode & NO_OWNER != 0 { u64::from(u32::MAX) } else { user.cast_unsigned() };
    words[0].store(user << 32, Relaxed);
    words[1].store(group.cast_unsigned(), Relaxed);
    words[2].store((mode & MODE_BITS) << 32, Relaxed);
    call(board, id, command)
}

/// Lists the segments there are.
pub(super) fn list(board: &Board, slot: &Slot) {
    if board.uses_ipc.load(Relaxed) == 0 {
        return;
    }
    let (mut place, mut count) = (0, 0);
    while place < MOST_SEGMENTS {
        let id = call(board, place.into(), SHM_STAT_ANY);
        if id >= 0 {
            let word = |at: usize| words(board)[at].load(Relaxed);
            let pid = i64::from(word(10) as u32);
            let segment = [
                id,
                i64::from(word(0) as i32),
                (word(2) >> 32 & MODE_BITS).cast_signed(),
                process_of(board, pid),
                word(6).cast_signed(),
                word(11).cast_signed(),
                i64::from(word(7) != 0),
            ];
            let mut at = 0;
            while at < segment.len() {
                slot.segments[count][at].store(segment[at], Relaxed);
                at += 1;
            }
            count += 1;
        }
        place += 1;
    }
    slot.segment_count.store(count as u32, Relaxed);
}

/// The program's number of a process, or -1.
fn process_of(board: &Board, pid: i64) -> i64 {
    let mut at = 0;
    while at < MOST_PROCESSES as usize {
        if board.pids[at].load(Relaxed) == pid {
            return at as i64;
        }
        at += 1;
    }
    -1
}

/// Reads what was listed.
pub(super) fn read(slot: &Slot, seen: &mut Vec<Segment>) {
    let count = slot.segment_count.load(Relaxed) as usize;
    seen.extend(slot.segments[..count].iter().map(|segment| {
        let [id, key, mode, creator, size, attachments, attached] =
            segment.each_ref().map(|word| word.load(Relaxed));
        Segment { id, key, mode, creator, size, attachments, was_attached: attached != 0 }
    }));
}
