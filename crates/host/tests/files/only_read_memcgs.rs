//! Collapses of files that none has open for writing, in a memcg at its limit.

use crate::common::*;
use crate::only_read::{AREA, collapse, huge, map, only_read, setup};

const HUGE: u64 = 512;
const PRIVATE: MapFlags = MapFlags::empty();

/// A machine that kills programs, without swap, and a memcg whose limit leaves `left` pages beside a block
/// and as many pages as a program in it has written.
fn short(written: u64, left: u64, test: impl FnOnce(&Machine, MemcgId, &Vcpu, &HostSpace<'_>)) {
    let machine: Machine = setup(64).overcommit().with(|memory| memory.oom = OomAction::Kill).build();
    let limit = HUGE + written + left;
    let (cpu, memcg, space) = in_memcg(&machine, "short", &[(Limit::Max, limit)]);
    let private = map_at(&space, 2 * GIB, written * PAGE, RW);
    (0..written).for_each(|at| write(&cpu, &space, page(private, at), at));
    test(&machine, memcg, &cpu, &space);
    assert!(!space.oom().is_killed());
    let [ooms, kills] = [MemcgEvent::Oom, MemcgEvent::OomKill].map(|event| events(&machine, memcg, event));
    assert_eq!((ooms, kills, count(&machine, VmEvent::OomKill)), (0, 0, 0));
    (0..written).for_each(|at| assert_eq!(read(&cpu, &space, page(private, at)), at));
    assert_audit(&machine);
}

/// As in Linux, which reads them ahead (`__GFP_NORETRY`).
#[test]
fn no_program_is_killed_for_the_pages_that_are_read() {
    // What was read can be freed for what is read next; or not even one page can be read.
    for left in [0, 24] {
        short(64, left, |machine, memcg, cpu, space| {
            let (file, _) = only_read(machine, HUGE);
            map(space, &file, HUGE, PRIVATE);
            assert_eq!(collapse(space, AREA, MIB2), Err(Errno::EINVAL));
            assert_eq!((huge(machine), space.oom().is_killed()), (0, false));
            assert!(events(machine, memcg, MemcgEvent::Max) > 0);
            assert!(usage(machine, memcg) <= 64 + 24, "the folio is given back");
            set_limit(machine, memcg, Limit::Max, 3 * HUGE);
            assert_eq!(collapse(space, AREA, MIB2), Ok(()));
            assert_eq!(read(cpu, space, page(AREA, 300)), 301);
        });
    }
}

#[test]
fn khugepaged_frees_nothing_for_the_pages_that_it_reads() {
    short(64, 24, |machine, memcg, cpu, space| {
        machine.memory().huge().change(|policy| policy.with_enabled(HugeEnabled::Always));
        let (file, _) = only_read(machine, HUGE);
        map(space, &file, HUGE, PRIVATE);
        assert_eq!(read(cpu, space, AREA), 1);
        let before = count(machine, VmEvent::PgstealDirect);
        assert_eq!(machine.memory().khugepaged_step().collapsed, 0);
        assert_eq!((huge(machine), count(machine, VmEvent::PgstealDirect)), (0, before));
        assert!(events(machine, memcg, MemcgEvent::Max) > 0);
        assert_eq!(file.figures().cached, 24, "as many as fit beside the folio");
        set_limit(machine, memcg, Limit::Max, 3 * HUGE);
        assert!(machine.memory().khugepaged_step().collapsed > 0);
        assert_eq!(huge(machine), HUGE);
        assert_eq!(read(cpu, space, page(AREA, 300)), 301);
    });
}
