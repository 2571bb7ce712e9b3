//! Single cases.

use crate::common::*;
use quire_mm::frame::KernelHeap;
use quire_tmpfs::{
    Allocate, END, Error, FIRST, Kind, Limits, New, Options, Owner, RenameOptions, SetAttributes, SetMode,
    SetTime, Time, Walk,
};

const PLAIN: RenameOptions = RenameOptions { no_replace: false, exchange: false, whiteout: None };
const EXCHANGE: RenameOptions = RenameOptions { exchange: true, ..PLAIN };

#[test]
fn a_new_file_system_has_a_root_like_linux() {
    with_fs(&Options { limits: Limits { pages: Some(256), inodes: Some(50) }, ..Options::default() }, |fs| {
        let stat = fs.root().stat();
        assert_eq!((stat.inode, stat.links, stat.size, stat.blocks, stat.mode()), (1, 2, 40, 0, 0o041_777));
        let figures = fs.stat();
        assert_eq!((figures.magic, figures.block_size, figures.longest_name), (0x0102_1994, 4096, 255));
        assert_eq!(
            (figures.blocks, figures.free_blocks, figures.inodes, figures.free_inodes),
            (256, 256, 50, 49)
        );
        assert!(fs.root().parent().unwrap().is_same(&fs.root()));
    });
}

#[test]
fn a_listing_goes_from_new_to_old_and_survives_removals() {
    with_fs(&Options::default(), |fs| {
        let root = fs.root();
        for name in ["a", "b", "c", "d", "e"] {
            root.create(name.as_bytes(), New::Regular, &USER).unwrap();
        }
        assert_eq!(names(&root), ["e", "d", "c", "b", "a"]);
        // Two at a time, with a removal of what comes next and a new name in between.
        let mut seen = Vec::new();
        let mut position = FIRST;
        while position != END {
            let mut taken = 0;
            position = root
                .list(position, &mut |entry| {
                    taken += 1;
                    if taken <= 2 {
                        seen.push(String::from_utf8(entry.name.to_vec()).unwrap());
                    }
                    taken <= 2
                })
                .unwrap();
            if seen.len() == 4 {
                root.unlink(b"c").unwrap();
                root.create(b"new", New::Regular, &USER).unwrap();
            }
        }
        assert_eq!(seen, [".", "..", "e", "d", "b", "a"]);
        assert_eq!(names(&root), ["new", "e", "d", "b", "a"]);
        // A name keeps its place while it exists, whatever it leads to.
        root.rename(b"new", &root, b"d", &PLAIN).unwrap();
        root.rename(b"a", &root, b"e", &EXCHANGE).unwrap();
        assert_eq!(names(&root), ["e", "d", "b", "a"]);
    });
}

#[test]
fn sizes_and_links_of_directories_are_linux_s() {
    with_fs(&Options::default(), |fs| {
        let root = fs.root();
        let directory = root.create(b"d", New::Directory, &USER).unwrap();
        root.create(b"f", New::Regular, &USER).unwrap();
        assert_eq!((root.stat().size, root.stat().links), (80, 3));
        directory.create(b"below", New::Directory, &USER).unwrap();
        directory.rename(b"below", &root, b"moved", &PLAIN).unwrap();
        assert_eq!((root.stat().size, root.stat().links), (100, 4));
        assert_eq!((directory.stat().size, directory.stat().links), (40, 2));
        assert!(root.lookup(b"moved").unwrap().parent().unwrap().is_same(&root));
        root.remove_directory(b"d").unwrap();
        assert_eq!((directory.stat().size, directory.stat().links), (40, 0));
        // A directory that was removed leads to where it was, and nothing comes into it.
        assert!(directory.parent().unwrap().is_same(&root));
        assert_eq!(directory.create(b"x", New::Regular, &USER).err(), Some(Error::NotFound));
        assert_eq!(directory.list(FIRST, &mut |_| true), Err(Error::NotFound));
        assert_eq!(root.rename(b"f", &directory, b"f", &PLAIN), Err(Error::NotFound));
        drop(directory);
    });
}

#[test]
fn a_file_without_a_name_lives_until_its_last_handle() {
    with_fs(&Options::default(), |fs| {
        let root = fs.root();
        let file = root.create(b"f", New::Regular, &USER).unwrap();
        file.write(|data| data.write(0, b"contents")).unwrap().unwrap();
        root.unlink(b"f").unwrap();
        let mut bytes = [0; 8];
        assert_eq!(file.read(|data| data.read(0, &mut bytes)), Ok(8));
        assert_eq!((&bytes, file.stat().links, fs.usage().pages), (b"contents", 0, 1));
        assert_eq!(root.link(b"again", &file), Err(Error::NotFound));
        let other = file.clone();
        drop(file);
        assert_eq!(fs.usage().pages, 1);
        drop(other);
        assert_eq!((fs.usage().pages, fs.usage().inodes), (0, 1));
        // One that was made without a name may get one.
        let file = root.create_unnamed(&USER).unwrap();
        assert_eq!((file.stat().links, fs.usage().inode_bytes), (0, 2048));
        root.link(b"named", &file).unwrap();
        assert_eq!((file.stat().links, fs.usage().inode_bytes), (1, 2048));
        root.unlink(b"named").unwrap();
        assert_eq!(root.link(b"named", &file), Err(Error::NotFound));
    });
}

#[test]
fn a_mapped_file_counts_when_the_file_system_is_gone() {
    with_memory(1, |memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let files = Files::new(memory);
        *files.mapped.lock().unwrap() = Some(Vec::new());
        let fs = TestFs::new(&heap, files, &Options::default()).unwrap();
        let file = fs.root().create(b"f", New::Regular, &USER).unwrap();
        file.write(|data| data.write(0, &[1; 5000])).unwrap().unwrap();
        fs.root().unlink(b"f").unwrap();
        drop(file);
        assert_eq!((fs.usage().pages, fs.usage().inodes), (2, 2), "a mapped file is in use");
        let mapped = fs.backend().mapped.lock().unwrap().take().unwrap();
        drop(fs);
        drop(mapped);
    });
}

#[test]
fn limits_of_inodes_count_links_and_attributes() {
    with_fs(&Options { limits: Limits { pages: Some(2), inodes: Some(4) }, ..Options::default() }, |fs| {
        let root = fs.root();
        let file = root.create(b"f", New::Regular, &USER).unwrap();
        root.link(b"g", &file).unwrap();
        root.link(b"h", &file).unwrap();
        assert_eq!(fs.stat().free_inodes, 0);
        assert_eq!(root.link(b"i", &file), Err(Error::NoSpace));
        assert_eq!(root.create(b"i", New::Directory, &USER).err(), Some(Error::NoSpace));
        assert_eq!(file.stat().links, 3);
        root.unlink(b"f").unwrap();
        assert_eq!(fs.stat().free_inodes, 1);
        assert_eq!(file.set_xattr(b"user.a", &[0; 1024], SetMode::Any), Err(Error::NoSpace));
        file.set_xattr(b"user.a", &[0; 900], SetMode::Any).unwrap();
        assert_eq!(fs.stat().free_inodes, 0);
        // Pages: a long target of a symbolic link is one.
        root.unlink(b"g").unwrap();
        let link = root.create(b"s", New::Symlink(&[b'x'; 128]), &USER).unwrap();
        assert_eq!((link.stat().blocks, link.stat().size, fs.usage().pages), (8, 128, 1));
        assert_eq!(file.write(|data| data.write(0, &[0; 5000])), Ok(Ok(4096)));
        assert_eq!(file.write(|data| data.write(4096, &[0])), Ok(Err(Error::NoSpace)));
        root.unlink(b"s").unwrap();
        drop(link);
        assert_eq!(file.write(|data| data.write(4096, &[0])), Ok(Ok(1)));
        assert_eq!(file.allocate(Allocate::KeepSize, (0, 3 * PAGE), None), Err(Error::NoSpace));
        // Limits may grow, and shrink to what is in use.
        fs.set_limits(Limits { pages: Some(3), inodes: Some(4) }).unwrap();
        assert_eq!(fs.set_limits(Limits { pages: Some(1), inodes: Some(4) }), Err(Error::Invalid));
        file.allocate(Allocate::KeepSize, (0, 3 * PAGE), None).unwrap();
        assert_eq!((file.stat().blocks, file.stat().size), (24, 4097));
    });
}

#[test]
fn attributes_and_set_group_id() {
    with_fs(&Options::default(), |fs| {
        let root = fs.root();
        let shared =
            root.create(b"d", New::Directory, &Owner { permissions: 0o2755, uid: 3, gid: 77 }).unwrap();
        let below = shared.create(b"below", New::Directory, &USER).unwrap().stat();
        assert_eq!((below.permissions, below.gid), (0o2644, 77));
        let file = shared.create(b"file", New::Character(0x0507), &USER).unwrap();
        assert_eq!((file.stat().permissions, file.stat().gid), (0o644, 77));
        assert_eq!((file.stat().kind, file.stat().mode()), (Kind::Character(0x0507), 0o020_644));
        let time = Time { seconds: 5, nanoseconds: 6 };
        file.set_attributes(&SetAttributes {
            permissions: Some(0o7600),
            uid: Some(9),
            accessed: Some(SetTime::To(time)),
            modified: Some(SetTime::Now),
            ..SetAttributes::default()
        });
        let stat = file.stat();
        assert_eq!((stat.permissions, stat.uid, stat.gid, stat.accessed), (0o7600, 9, 77, time));
        assert!(stat.modified == stat.changed && stat.born < stat.changed);
    });
}

#[test]
fn paths_follow_links_within_the_root() {
    with_fs(&Options::default(), |fs| {
        let root = fs.root();
        let walk = paths(&root);
        walk.create(b"/a/", New::Directory, &USER).unwrap();
        let below = walk.create(b"a//b", New::Directory, &USER).unwrap();
        walk.create(b"a/b/f", New::Regular, &USER).unwrap();
        walk.create(b"top", New::Symlink(b"/"), &USER).unwrap();
        walk.create(b"a/up", New::Symlink(b"../a/b/.."), &USER).unwrap();
        walk.create(b"abs", New::Symlink(b"/a/up/b/"), &USER).unwrap();
        let file = walk.lookup(b"a/b/f", true).unwrap();
        for path in [&b"abs/f"[..], b"top/abs/f", b"a/up/up/b/f", b"../../a/b/./f", b"top/top/a/b/../b/f"] {
            assert!(walk.lookup(path, true).unwrap().is_same(&file), "{}", path.escape_ascii());
        }
        assert_eq!(walk.lookup(b"abs", false).unwrap().stat().kind, Kind::Symlink);
        assert!(walk.lookup(b"abs/", false).unwrap().is_same(&below));
        // A link at the end of another one's target is followed too, also one that leads to the root.
        walk.create(b"slashes", New::Symlink(b"top//"), &USER).unwrap();
        walk.create(b"deep", New::Symlink(b"a/up/"), &USER).unwrap();
        assert!(walk.lookup(b"slashes/a/b/f", true).unwrap().is_same(&file));
        assert!(walk.lookup(b"deep/b/f", true).unwrap().is_same(&file));
        assert_eq!(walk.open_or_create(b"slashes/deep/b/f", &USER, true).err(), Some(Error::Exists));
        // A program with another root does not leave it, by `..` or by an absolute link.
        let jail = walk.lookup(b"a", true).unwrap();
        let inside = Walk { root: &jail, start: &below, may_search: EVERYWHERE };
        assert!(inside.lookup(b"../../../b/f", true).unwrap().is_same(&file));
        below.create(b"out", New::Symlink(b"/b/f"), &USER).unwrap();
        assert!(inside.lookup(b"out", true).unwrap().is_same(&file));
        // Each directory that is searched is asked for.
        let closed = Walk { root: &root, start: &root, may_search: &|stat| stat.inode != below.stat().inode };
        assert_eq!(closed.lookup(b"a/b", true).map(|node| node.stat().inode), Ok(below.stat().inode));
        assert_eq!(closed.lookup(b"a/b/f", true).err(), Some(Error::Access));
        assert_eq!(closed.lookup(b"abs/.", true).err(), Some(Error::Access));
        // Chains of links: 40 are followed.
        root.create(b"l0", New::Symlink(b"a"), &USER).unwrap();
        for number in 1..=40 {
            let (name, target) = (format!("l{number}"), format!("l{}", number - 1));
            root.create(name.as_bytes(), New::Symlink(target.as_bytes()), &USER).unwrap();
        }
        assert!(walk.lookup(b"l39", true).unwrap().is_same(&jail));
        assert_eq!(walk.lookup(b"l40", true).err(), Some(Error::Loop));
        // Links that are not at the end of a target are all open at a time.
        root.create(b"m0", New::Symlink(b"a"), &USER).unwrap();
        for number in 1..=40 {
            let (name, target) = (format!("m{number}"), format!("m{}/b/..", number - 1));
            root.create(name.as_bytes(), New::Symlink(target.as_bytes()), &USER).unwrap();
        }
        assert!(walk.lookup(b"m39/", true).unwrap().is_same(&jail));
        assert_eq!(walk.lookup(b"m40/b", true).err(), Some(Error::Loop));
    });
}

#[test]
fn another_file_system_is_refused() {
    with_memory(1, |memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let [one, two] =
            [(), ()].map(|()| TestFs::new(&heap, Files::new(memory), &Options::default()).unwrap());
        let file = one.root().create(b"f", New::Regular, &USER).unwrap();
        assert_eq!(two.root().link(b"g", &file), Err(Error::OtherFileSystem));
        assert_eq!(one.root().rename(b"f", &two.root(), b"g", &PLAIN), Err(Error::OtherFileSystem));
        assert_eq!(names(&two.root()), [""; 0]);
    });
}

#[test]
fn what_is_mapped_or_deep_goes_with_the_file_system() {
    with_memory(1, |memory, _| {
        let heap = KernelHeap::new(memory.kernel_frames()).unwrap();
        let mut used = Vec::new();
        for _ in 0..3 {
            let fs = TestFs::new(&heap, Files::new(memory), &Options::default()).unwrap();
            let mut directory = fs.root();
            for depth in 0..2000 {
                let file = directory.create(b"f", New::Regular, &USER).unwrap();
                directory.link(b"g", &file).unwrap();
                file.set_xattr(b"trusted.depth", &[depth as u8; 100], SetMode::Create).unwrap();
                directory.create(b"s", New::Symlink(&[b'/'; 3000]), &USER).unwrap();
                directory = directory.create(b"d", New::Directory, &USER).unwrap();
            }
            drop(directory);
            assert_sound(&fs);
            drop(fs);
            heap.shrink();
            used.push(memory.totals().free);
        }
        assert_eq!(used[1], used[2], "a file system left memory behind");
    });
}
