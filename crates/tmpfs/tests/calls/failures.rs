//! Every allocation of each call fails once: the call has no effect then, and succeeds when made again.

use crate::common::*;
use quire_frame::FailPlan;
use quire_mm::Memory;
use quire_mm::frame::KernelHeap;
use quire_tmpfs::{Error, Kind, New, Options, Owner, RenameOptions, SetMode, Stat, Usage};
use std::sync::atomic::Ordering;

type Call = fn(&TestNode<'_, '_>) -> Result<(), Error>;

/// The calls that allocate, with how many allocations they make.
const CALLS: [(&str, u64, Call); 10] = [
    ("create", 2, |root| root.create(b"new", New::Regular, &USER).map(drop)),
    ("mkdir", 2, |root| root.create(b"new", New::Directory, &USER).map(drop)),
    ("short symlink", 3, |root| root.create(b"new", New::Symlink(b"target"), &USER).map(drop)),
    ("long symlink", 3, |root| root.create(b"new", New::Symlink(&[b'x'; 999]), &USER).map(drop)),
    ("unnamed", 1, |root| root.create_unnamed(&USER).map(drop)),
    ("link", 1, |root| root.link(b"new", &root.lookup(b"file")?)),
    ("rename", 1, |root| root.rename(b"file", &root.lookup(b"d")?, b"new", &RenameOptions::default())),
    ("rename over a directory, whiteout", 1, |root| {
        let options = RenameOptions { whiteout: Some(Owner::default()), ..RenameOptions::default() };
        root.rename(b"d", root, b"empty", &options)
    }),
    ("whiteout", 2, |root| {
        let options = RenameOptions { whiteout: Some(Owner::default()), ..RenameOptions::default() };
        root.rename(b"d", root, b"new", &options)
    }),
    ("set an attribute", 1, |root| root.lookup(b"file")?.set_xattr(b"user.a", b"new", SetMode::Any)),
];

/// All that can be seen, but for times that are looked at.
fn state(fs: &TestFs<'_>) -> (Usage, Vec<(String, Stat)>, Vec<String>) {
    fn walk(directory: &TestNode<'_, '_>, path: &str, all: &mut Vec<(String, Stat)>) {
        for name in names(directory) {
            let node = directory.lookup(name.as_bytes()).unwrap();
            let path = format!("{path}/{name}");
            all.push((path.clone(), node.stat()));
            if node.stat().kind == Kind::Directory {
                walk(&node, &path, all);
            }
        }
    }
    let mut all = vec![("/".into(), fs.root().stat())];
    walk(&fs.root(), "", &mut all);
    let mut attributes = Vec::new();
    let file = fs.root().lookup(b"file").unwrap();
    file.for_each_xattr(&mut |name| {
        attributes.push(format!("{}: {:?}", name.escape_ascii(), file.xattr(name, <[u8]>::to_vec)));
    });
    for (_, stat) in &mut all {
        stat.accessed = Default::default();
    }
    (fs.usage(), all, attributes)
}

fn new_fs<'m>(heap: &'m KernelHeap<'m, quire_host::HostPlatform>, memory: &'m HostMemory) -> TestFs<'m> {
    let fs = TestFs::new(heap, Files::new(memory), &Options::default()).unwrap();
    let root = fs.root();
    let file = root.create(b"file", New::Regular, &USER).unwrap();
    file.set_xattr(b"user.a", b"old", SetMode::Any).unwrap();
    let directory = root.create(b"d", New::Directory, &USER).unwrap();
    directory.create(b"in it", New::Fifo, &USER).unwrap();
    root.create(b"empty", New::Directory, &USER).unwrap();
    drop((root, file, directory));
    fs
}

#[test]
fn every_allocation_can_fail_and_is_undone() {
    with_memory(1, |memory: &Memory<_>, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        for (name, allocations, call) in CALLS {
            let mut failures = 0;
            for nth in 1.. {
                let fs = new_fs(&heap, memory);
                let before = state(&fs);
                memory.fail_points().set(FailPlan::nth(nth));
                let result = call(&fs.root());
                memory.fail_points().set(FailPlan::OFF);
                if memory.fail_points().failed() == 0 {
                    assert_eq!(result, Ok(()), "{name}");
                    break;
                }
                failures += 1;
                assert_eq!(result, Err(Error::NoMemory), "{name}, allocation {nth}");
                assert_eq!(state(&fs), before, "{name}, allocation {nth}");
                assert_sound(&fs);
                assert_eq!(call(&fs.root()), Ok(()), "{name} again, after allocation {nth}");
                assert_sound(&fs);
            }
            assert!(failures >= allocations, "{name}: {failures} of {allocations} allocations have failed");
        }
    });
}

#[test]
fn a_file_system_that_cannot_be_made_leaves_nothing() {
    with_memory(1, |memory: &Memory<_>, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let mut failures = 0;
        for nth in 1.. {
            memory.fail_points().set(FailPlan::nth(nth));
            let made = TestFs::new(&heap, Files::new(memory), &Options::default()).map(drop);
            memory.fail_points().set(FailPlan::OFF);
            if memory.fail_points().failed() == 0 {
                assert_eq!(made, Ok(()));
                break;
            }
            assert_eq!(made, Err(Error::NoMemory));
            failures += 1;
        }
        assert!(failures >= 2, "only {failures} allocations have failed");
    });
}

#[test]
fn a_file_whose_bytes_cannot_be_made_is_not_made() {
    with_fs(&Options::default(), |fs| {
        fs.backend().fails.store(2, Ordering::Relaxed);
        let root = fs.root();
        assert_eq!(root.create(b"f", New::Regular, &USER).err(), Some(Error::NoMemory));
        assert_eq!(root.create_unnamed(&USER).err(), Some(Error::NoMemory));
        assert_sound(fs);
        assert_eq!((fs.usage().inodes, names(&root).len()), (1, 0));
        root.create(b"f", New::Regular, &USER).unwrap();
    });
}
