//! Two CPUs at once, with fixed seeds; then the tree is recounted.

use crate::common::*;
use quire_mm::frame::KernelHeap;
use quire_tmpfs::{Error, FIRST, Limits, New, Options, RenameOptions, SetMode};
use std::sync::Barrier;
use std::sync::atomic::Ordering;

const CALLS: usize = 6000;

fn path(random: &mut Random) -> String {
    let depth = 1 + random.below(4);
    let parts: Vec<&str> = (0..depth).map(|_| *random.pick(&["a", "b", "c"])).collect();
    parts.join("/")
}

/// Makes random calls. An error that no order of the calls explains panics.
fn work(fs: &TestFs<'_>, seed: u64) -> usize {
    let mut random = Random(seed);
    let root = fs.root();
    let walk = paths(&root);
    let mut held: Vec<TestNode<'_, '_>> = vec![root.clone()];
    let mut done = 0;
    for _ in 0..CALLS {
        let (one, other) = (path(&mut random), path(&mut random));
        let result = match random.below(16) {
            0..=3 => walk.create(one.as_bytes(), New::Directory, &USER).map(|node| held.push(node)),
            4 | 5 => walk.open_or_create(one.as_bytes(), &USER, false).and_then(|file| {
                let written = file.write(|data| data.write(random.below(3 * PAGE), &[7; 100]))?;
                held.push(file);
                written.map(drop)
            }),
            6 => walk.unlink(one.as_bytes()),
            7 => walk.remove_directory(one.as_bytes()),
            8..=11 => {
                let exchange = random.below(3) == 0;
                let options = RenameOptions { exchange, ..RenameOptions::default() };
                walk.rename(one.as_bytes(), other.as_bytes(), &options)
            }
            12 => walk.lookup(one.as_bytes(), true).and_then(|target| random.pick(&held).link(b"a", &target)),
            13 => random.pick(&held).list(FIRST, &mut |entry| entry.name != b"b").map(drop),
            14 => {
                // Up from anywhere: a directory that is being moved leads somewhere.
                let mut node = random.pick(&held).clone();
                (0..8).try_for_each(|_| node.parent().map(|parent| node = parent))
            }
            _ => random.pick(&held).set_xattr(b"user.a", &[1; 50], SetMode::Any),
        };
        match result {
            Ok(()) => done += 1,
            Err(Error::Loop | Error::NoMemory | Error::Io | Error::BadAddress | Error::Busy) => {
                panic!("seed {seed}: {result:?} of {one} and {other}")
            }
            Err(_) => {}
        }
        if held.len() > 20 {
            held.swap_remove(1 + random.below(held.len() as u64 - 1) as usize);
        }
    }
    done
}

#[test]
fn two_cpus_leave_a_sound_tree() {
    with_memory(2, |memory, platform| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        for seed in 1..=6 {
            let limits = Limits { pages: Some(40), inodes: Some(90) };
            let options = Options { limits, ..Options::default() };
            let fs = TestFs::new(&heap, Files::new(memory), &options).unwrap();
            let begin = Barrier::new(2);
            let done = std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let _cpu = platform.vcpu(1).unwrap();
                    begin.wait();
                    work(&fs, 1000 + seed)
                });
                begin.wait();
                work(&fs, seed) + other.join().unwrap()
            });
            assert_sound(&fs);
            assert!(done > CALLS / 10, "only {done} calls did something");
        }
    });
}

/// Hazard: two directories are moved below each other at once, and no path leads to either any more. The
/// moves lock four different directories. Each looks at the clock between its checks and its changes, and
/// waits there for the other one, which comes only if nothing keeps it out.
#[test]
fn two_directories_are_not_moved_below_each_other() {
    with_memory(2, |memory, platform| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        for _ in 0..3 {
            let fs = TestFs::new(&heap, Files::new(memory), &Options::default()).unwrap();
            let root = fs.root();
            for path in ["a", "b", "a/x", "b/y", "a/x/p", "b/y/q"] {
                paths(&root).create(path.as_bytes(), New::Directory, &USER).unwrap();
            }
            let [a, b, p, q] =
                ["a", "b", "a/x/p", "b/y/q"].map(|path| paths(&root).lookup(path.as_bytes(), true).unwrap());
            let plain = RenameOptions::default();
            fs.backend().meet.store(1, Ordering::Relaxed);
            let results = std::thread::scope(|scope| {
                let other = scope.spawn(|| {
                    let _cpu = platform.vcpu(1).unwrap();
                    b.rename(b"y", &p, b"y", &plain)
                });
                [a.rename(b"x", &q, b"x", &plain), other.join().unwrap()]
            });
            fs.backend().meet.store(0, Ordering::Relaxed);
            assert!(results.contains(&Ok(())), "{results:?}");
            assert!(results.contains(&Err(Error::Invalid)), "both were moved");
            drop((a, b, p, q, root));
            assert_sound(&fs);
        }
    });
}

/// Moves of directories past each other, in both directions: a wrong order of locks waits for ever.
#[test]
fn moves_of_directories_end() {
    with_memory(2, |memory, platform| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let fs = TestFs::new(&heap, Files::new(memory), &Options::default()).unwrap();
        let root = fs.root();
        let walk = paths(&root);
        for path in ["a", "b", "a/x", "b/y", "a/x/p", "b/y/q"] {
            walk.create(path.as_bytes(), New::Directory, &USER).unwrap();
        }
        let places = ["a/x", "b/y/q/x", "b/y", "a/x/p/y", "a/x/p", "b/p", "b/y/q", "a/q"];
        let move_around = |seed: u64| {
            let mut random = Random(seed);
            let (root, mut done) = (fs.root(), 0);
            let walk = paths(&root);
            for _ in 0..8000 {
                let (old, new) = (random.pick(&places), random.pick(&places));
                let exchange = random.below(4) == 0;
                let options = RenameOptions { exchange, no_replace: !exchange, whiteout: None };
                done += usize::from(walk.rename(old.as_bytes(), new.as_bytes(), &options).is_ok());
            }
            done
        };
        let done = std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let _cpu = platform.vcpu(1).unwrap();
                move_around(2)
            });
            move_around(1) + other.join().unwrap()
        });
        assert_sound(&fs);
        assert_eq!(fs.usage().inodes, 7, "no directory is lost");
        assert!(done > 100, "only {done} moves were made");
    });
}
