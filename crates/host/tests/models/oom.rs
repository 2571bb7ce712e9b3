//! The OOM killer beside threads without memory, and beside the exits of those that it killed.

use crate::machines::*;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Pages that the memcg may have, and those that the program to be killed has of them.
const LIMIT: u64 = 24;
const VICTIM: u64 = 12;

/// A machine that kills programs, with a memcg that is full: the first space, which is to be chosen, has some
/// of its pages, and the others have the rest.
fn check<const N: usize>(
    model: impl Fn(&Machine, MemcgId, &[HostSpace<'_>; N]) + Send + Sync + Clone + 'static,
) {
    let setup = Setup::mib(2).cpus(N).overcommit().with(|memory| memory.oom = OomAction::Kill);
    check_seeded(SOME, seed_of(&model), move || {
        with_spaces(&setup, |machine, spaces: &[HostSpace<'_>; N]| {
            let memory = machine.memory();
            let memcg = as_one_step(|| {
                let memcg = memory.create_memcg(MemcgId::ROOT, "g").expect("a memcg");
                memory.write_memcg_file(memcg, "memory.max", &(LIMIT * PAGE).to_string()).expect("a limit");
                for (cpu, space) in spaces.iter().enumerate() {
                    space.set_memcg(memcg).expect("a memcg");
                    let pages = if cpu == 0 { VICTIM } else { (LIMIT - VICTIM) / (N as u64 - 1) };
                    map_at(space, MIB2, LIMIT * PAGE, RW);
                    (0..pages).for_each(|at| write(machine, cpu, space, page(VirtAddr(MIB2), at), 1));
                }
                spaces[0].oom().set_score_adj(1000);
                memcg
            });
            model(machine, memcg, spaces);
        });
    });
}

/// A page that a program has not written yet.
fn fresh() -> VirtAddr {
    page(VirtAddr(MIB2), LIMIT - 1)
}

fn kills(machine: &Machine, memcg: MemcgId) -> u64 {
    as_one_step(|| machine.memory().memcgs().counters().events(memcg, MemcgEvent::OomKill))
}

/// Two threads find no memory at once: one program is killed for both.
#[test]
fn shuttle_two_threads_without_memory_kill_one_program() {
    check(|machine, memcg, [victim, first, second]| {
        thread::scope(|scope| {
            spawn_on(scope, machine, 1, first, |program| program.write_u64(fresh(), 2).expect("room"));
            spawn_on(scope, machine, 2, second, |program| program.write_u64(fresh(), 2).expect("room"));
        });
        assert_eq!((victim.oom().is_killed(), kills(machine, memcg)), (true, 1));
    });
}

/// A killed program exits while another one needs a page: none is killed for that.
#[test]
fn shuttle_the_exit_of_a_killed_program_against_a_thread_without_memory() {
    check(|machine, memcg, [victim, other]| {
        // The exit is that of the last handle.
        let killed = as_one_step(|| {
            let killed = fork(victim);
            victim.munmap(VirtAddr(MIB2), LIMIT * PAGE).expect("mapped");
            killed.oom().kill();
            killed
        });
        thread::scope(|scope| {
            scope.spawn(|| as_cpu(machine, 0, || exit(killed)));
            spawn_on(scope, machine, 1, other, |program| program.write_u64(fresh(), 2).expect("room"));
        });
        assert_eq!((other.oom().is_killed(), kills(machine, memcg)), (false, 0));
    });
}

/// A program forks while all of its memcg are killed together: no child is left over.
#[test]
fn shuttle_a_fork_against_the_kill_of_its_group() {
    check(|machine, memcg, [victim, parent, other]| {
        as_one_step(|| machine.memory().write_memcg_file(memcg, "memory.oom.group", "1")).expect("a switch");
        let child = thread::scope(|scope| {
            let child = scope.spawn(|| on_cpu(machine, 1, parent, |_| parent.fork()).ok());
            spawn_on(scope, machine, 2, other, |program| _ = program.write_u64(fresh(), 2));
            child.join().expect("no thread panicked")
        });
        let killed = [victim, parent, other].map(|space| space.oom().is_killed());
        let of_child = child.as_ref().map(|child| child.oom().is_killed());
        as_one_step(|| drop(child));
        assert_eq!((killed, of_child.unwrap_or(true)), ([true; 3], true), "one was left over");
    });
}
