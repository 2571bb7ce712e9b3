//! Seals that are set while programs map, write and unmap, and devices have pages pinned.

use crate::common::{file_request, read_file};
use crate::files::shared;
use crate::machines::*;
use quire_mm::file::Seals;
use quire_sync::atomic::as_one_step;
use shuttle::thread;
use std::mem::ManuallyDrop;

/// Hazard: a mapping, an entry that is not flushed yet, or a device still writes once a seal against that is
/// there.
#[test]
fn shuttle_a_seal_against_maps_writes_and_pins() {
    let setup = Setup::mib(2).cpus(3).overcommit();
    let model = move |machine: &Machine, space: &HostSpace<'_>| {
        let request = file_request(0, 2, RW, MapFlags::SHARED).at(shared(0), MapFlags::FIXED);
        let file = ManuallyDrop::new(as_one_step(|| {
            let file = machine.memory().create_shmem((), 2 * PAGE).expect("there is memory enough");
            space.mmap_file(&request, &file).expect("there is memory enough");
            write(machine, 0, space, shared(0), 1);
            file
        }));
        let sealed = Fact::default();
        let word = || read_file(&file, 0, 8);
        thread::scope(|scope| {
            spawn_on(scope, machine, 0, space, |program| {
                for value in 2..6 {
                    let late = sealed.is_told();
                    match program.write_u64(shared(0), value) {
                        Ok(()) => assert!(!late, "a program has written after the seal"),
                        Err(error) => assert_eq!(error, NOT_MAPPED),
                    }
                }
            });
            spawn_on(scope, machine, 1, space, |_| {
                let pinned = space.pin_page(shared(0), Access::Write).expect("it is mapped");
                space.munmap(shared(0), 2 * PAGE).expect("a mapping can go");
                assert!(!sealed.is_told(), "a device can write after the seal");
                drop(pinned);
                let late = sealed.is_told();
                match space.mmap_file(&request, &file) {
                    Ok(_) => {
                        assert!(!late && !sealed.is_told(), "a mapping came after the seal");
                        space.munmap(shared(0), 2 * PAGE).expect("a mapping can go");
                    }
                    Err(error) => assert_eq!(error, Error::Sealed),
                }
            });
            scope.spawn(|| {
                as_cpu(machine, 2, || {
                    if (0..4).any(|_| file.add_seals(Seals::WRITE).is_ok()) {
                        sealed.tell();
                        let before = word();
                        for _ in 0..3 {
                            thread::yield_now();
                            assert_eq!(word(), before, "it has changed after the seal");
                        }
                    }
                });
            });
        });
        as_one_step(|| {
            let added = file.add_seals(Seals::WRITE);
            assert_eq!(added, Ok(()), "nothing is left that may write");
        });
        audit(machine);
        as_one_step(|| drop(ManuallyDrop::into_inner(file)));
    };
    check_seeded(SOME, seed_of(&model), move || {
        with_spaces(&setup, |machine, [space]| model(machine, space))
    });
}
