//! khugepaged's scan, and threads that step it at once.

use crate::harness::*;
use quire_space::khugepaged_totals;
use quire_sync::atomic::as_one_step;
use shuttle::thread;

/// Each step scans one of three spaces, or does nothing beside another one: none is scanned twice in a round.
#[test]
fn shuttle_steps_of_khugepaged_at_once_scan_no_space_twice() {
    let setup = Setup::mib(1).cpus(3);
    check(move || {
        with_spaces(&setup, |machine, spaces: &[_; 3]| {
            let memory = machine.memory();
            as_one_step(|| {
                memory.huge().set_khugepaged(KhugepagedSetting::PagesToScan, 1).expect("in range");
                spaces.iter().for_each(|space| _ = map_at(space, MIB2, PAGE, RW));
            });
            let step = |cpu| as_cpu(machine, cpu, || memory.khugepaged_step().scanned);
            let scanned = thread::scope(|scope| {
                let steps = [0, 1, 2].map(|cpu| scope.spawn(move || step(cpu)));
                steps.map(|step| step.join().expect("no thread panics"))
            });
            // Each is a page, and so is its mapping, which is skipped.
            let scanned = scanned.into_iter().sum::<u64>() / 2;
            let rounds = as_one_step(|| khugepaged_totals(memory.spaces()).0);
            assert_eq!(rounds, u64::from(scanned == 3), "{scanned} spaces were scanned");
        });
    });
}
