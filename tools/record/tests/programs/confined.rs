//! Programs that filter their calls, confine themselves, or trace others.

use crate::compat;
use crate::shared::{HIDDEN_PAGES, NOT_PERMITTED, PAGE};
use crate::{PRIVATE, READ_WRITE, end, execute, leave, make_process, map, wait_for};
use libc::sock_filter;

/// `landlock_create_ruleset` and `landlock_restrict_self`, which libc does not have for this target.
const CREATE_RULESET: i64 = 444;
const RESTRICT_SELF: i64 = 446;
/// The right to write to files.
const WRITE_FILE: u64 = 2;

fn errno() -> i32 {
    std::io::Error::last_os_error().raw_os_error().unwrap()
}

/// What is executed cannot gain rights: needed for a filter and for landlock without root's.
fn gain_nothing() {
    // SAFETY: takes numbers.
    let set = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64) };
    assert_eq!(set, 0);
}

/// From now on each of these calls has this verdict.
pub(crate) fn filter(calls: &[i64], verdict: u32) {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let step = |code: u32, jf: u8, k: u32| sock_filter { code: code as u16, jt: 0, jf, k };
    // The number of the call is the first word.
    let mut code = vec![step(LOAD, 0, 0)];
    for call in calls {
        code.extend([step(EQUAL, 1, *call as u32), step(RETURN, 0, verdict)]);
    }
    code.push(step(RETURN, 0, libc::SECCOMP_RET_ALLOW));
    let program = libc::sock_fprog { len: code.len() as u16, filter: code.as_mut_ptr() };
    let program: *const libc::sock_fprog = &raw const program;
    gain_nothing();
    // SAFETY: the program lives until the kernel has copied it.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, program) };
    assert_eq!(set, 0);
}

fn touch() {
    let addr = map(HIDDEN_PAGES * PAGE, READ_WRITE, PRIVATE);
    for page in 0..HIDDEN_PAGES {
        // SAFETY: inside of the mapping.
        unsafe { addr.add(page * PAGE).write_volatile(1) };
    }
}

/// A filter that asks a tracer, which there is not: Linux fails the calls.
pub(crate) fn asks_a_tracer_that_is_not_there() {
    let addr = map(PAGE, READ_WRITE, PRIVATE);
    // One that the recorder does not stop at, one that it reports without a stop, two that it stops at.
    let asked = [libc::SYS_getppid, libc::SYS_madvise, libc::SYS_mlock, libc::SYS_mincore];
    filter(&asked, libc::SECCOMP_RET_TRACE | 7);
    for call in asked {
        // SAFETY: a page that is mapped; none of the calls changes it.
        let result = unsafe { libc::syscall(call, addr, PAGE, 0) };
        assert_eq!((result, errno()), (-1, libc::ENOSYS), "{call}");
    }
    touch();
    let status = wait_for(make_process(touch));
    leave(if status == 0 { 11 } else { 1 });
}

/// The same of calls of the 32-bit table.
pub(crate) fn asks_a_tracer_in_32_bit_mode() {
    if !compat::is_there() {
        leave(NOT_PERMITTED);
    }
    // One that the recorder does not stop at, one that it does.
    let asked = [compat::GETPPID, compat::BRK];
    filter(&asked.map(i64::from), libc::SECCOMP_RET_TRACE | 7);
    let all_fail = || {
        asked
            .iter()
            .all(|call| [compat::call(*call), compat::call_from_64_bit_mode(*call)] == [-libc::ENOSYS; 2])
    };
    assert!(all_fail());
    let status = wait_for(make_process(|| end(i32::from(!all_fail()))));
    leave(if status == 0 { 17 } else { 1 });
}

/// Linux takes strict mode or filters, and this process has a filter of the recorder's.
pub(crate) fn asks_for_strict_mode() {
    let ways = [
        || {
            // SAFETY: takes numbers. It ends by another call than the permitted one if it is obeyed.
            unsafe { libc::prctl(libc::PR_SET_SECCOMP, 1_u64, 0_u64, 0_u64, 0_u64) }
        },
        || {
            // SAFETY: takes numbers. It ends by another call than the permitted ones if it is obeyed.
            unsafe { libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_STRICT, 0, 0) as i32 }
        },
    ];
    for strict in ways {
        let status = wait_for(make_process(|| {
            if strict() != 0 {
                end(if errno() == libc::EINVAL { 3 } else { 4 });
            }
            // SAFETY: ends this thread, which is the only one.
            unsafe { libc::syscall(libc::SYS_exit, 5) };
        }));
        assert_eq!(libc::WEXITSTATUS(status), 3);
    }
    touch();
    leave(12);
}

/// A process that may write no file, and its child.
pub(crate) fn restricts_itself() {
    let rights: [u64; 1] = [WRITE_FILE];
    // SAFETY: the pointer is to a live local of that size.
    let rules = unsafe { libc::syscall(CREATE_RULESET, rights.as_ptr(), size_of_val(&rights), 0) };
    if rules < 0 {
        leave(NOT_PERMITTED);
    }
    gain_nothing();
    // SAFETY: takes numbers.
    assert_eq!(unsafe { libc::syscall(RESTRICT_SELF, rules, 0) }, 0);
    assert!(std::fs::File::options().write(true).open("/dev/null").is_err());
    touch();
    let status = wait_for(make_process(|| {
        touch();
        execute(&[c"/proc/self/exe", c"touches"]);
    }));
    leave(if status == 0 { 13 } else { 1 });
}

/// A child asks to be traced, and executes a program whether it is or not.
pub(crate) fn traces_what_it_executes() {
    let child = make_process(|| {
        // SAFETY: asks to be traced.
        let traced = unsafe { libc::ptrace(libc::PTRACE_TRACEME, 0, 0, 0) };
        if traced == -1 && errno() == libc::EPERM {
            execute(&[c"/proc/self/exe", c"touches"]);
        }
        end(1);
    });
    leave(if wait_for(child) == 0 { 14 } else { 1 });
}

/// Makes processes with CLONE_UNTRACED that share its memory. The block of arguments is used for something
/// else as soon as the call has returned.
pub(crate) fn uses_the_arguments_of_untraced_children_again() {
    const OTHER: u64 = 0x5a5a_0000;
    let flags = (libc::CLONE_UNTRACED | libc::CLONE_VM) as u64;
    let stack = map(64 * PAGE, READ_WRITE, PRIVATE);
    for _ in 0..400 {
        let mut arguments = [0; 8];
        (arguments[0], arguments[4]) = (flags, libc::SIGCHLD as u64);
        (arguments[5], arguments[6]) = (stack as u64, (64 * PAGE) as u64);
        let mut child: i64;
        // SAFETY: the child has a stack of its own, and ends at once without it.
        unsafe {
            std::arch::asm!("syscall", "test rax, rax", "jnz 2f", "mov edi, 0", "mov eax, 60", "syscall", "2:",
                "mov [{block}], {other}", block = in(reg) arguments.as_mut_ptr(), other = in(reg) OTHER,
                inlateout("rax") libc::SYS_clone3 => child, inlateout("rdi") arguments.as_mut_ptr() => _,
                in("rsi") size_of_val(&arguments), out("rcx") _, out("r11") _);
        }
        assert!(child > 0);
        let status = wait_for(child as i32);
        // SAFETY: the block is there.
        let after = unsafe { (&raw const arguments[0]).read_volatile() };
        assert_eq!((status, after), (0, OTHER));
    }
    leave(15);
}

/// The arguments of such a call are in memory that cannot be written, or that others have, too.
pub(crate) fn makes_untraced_children_with_arguments_elsewhere() {
    let shared = libc::MAP_SHARED | libc::MAP_ANONYMOUS;
    for (flags, prot) in [(PRIVATE, libc::PROT_READ), (shared, READ_WRITE), (shared, libc::PROT_READ)] {
        let block = map(PAGE, READ_WRITE, flags).cast::<u64>();
        // SAFETY: inside of the mapping.
        unsafe {
            block.write_volatile(libc::CLONE_UNTRACED as u64);
            block.add(4).write_volatile(libc::SIGCHLD as u64);
            assert_eq!(libc::mprotect(block.cast(), PAGE, prot), 0);
        }
        // SAFETY: the block is there; a copy of this process.
        let child = unsafe { libc::syscall(libc::SYS_clone3, block, 64) };
        // SAFETY: the block is there, and readable with each of these protections.
        let is_kept = unsafe { block.read_volatile() } == libc::CLONE_UNTRACED as u64;
        if child == 0 {
            end(i32::from(!is_kept));
        }
        assert!(child > 0 && is_kept);
        assert_eq!(wait_for(child as i32), 0);
    }
    leave(16);
}
