//! Random calls against a model: a map of paths, and a table of inodes.

use crate::common::*;
use quire_tmpfs::{Error, Kind, New, Options, RenameOptions};
use std::collections::BTreeMap;

/// What a path leads to, by the number of the inode. All parents of a path are in the map.
#[derive(Default)]
struct Model {
    names: BTreeMap<String, u64>,
    kinds: BTreeMap<u64, Kind>,
}

impl Model {
    fn kind(&self, path: &str) -> Option<Kind> {
        if path.is_empty() {
            Some(Kind::Directory)
        } else {
            self.names.get(path).map(|inode| self.kinds[inode])
        }
    }

    fn parent(path: &str) -> &str {
        path.rsplit_once('/').map_or("", |(parent, _)| parent)
    }

    /// Why a name in its directory cannot even be looked for.
    fn way(&self, path: &str) -> Result<(), Error> {
        let parent = Self::parent(path);
        match self.kind(parent) {
            Some(Kind::Directory) => Ok(()),
            Some(_) => Err(Error::NotDirectory),
            None => self.way(parent).and(Err(Error::NotFound)),
        }
    }

    fn below(&self, path: &str) -> Vec<(String, u64)> {
        let start = format!("{path}/");
        let all = self.names.iter().filter(|(name, _)| name.starts_with(&start));
        all.map(|(name, inode)| (name.clone(), *inode)).collect()
    }

    fn links(&self, inode: u64) -> usize {
        self.names.values().filter(|other| **other == inode).count()
    }

    fn link(&mut self, old: &str, new: &str) -> Result<(), Error> {
        self.way(old)?;
        let kind = self.kind(old).ok_or(Error::NotFound)?;
        self.way(new)?;
        match (self.kind(new), kind) {
            (Some(_), _) => Err(Error::Exists),
            (None, Kind::Directory) => Err(Error::NotPermitted),
            (None, _) => {
                self.names.insert(new.into(), self.names[old]);
                Ok(())
            }
        }
    }

    fn remove(&mut self, path: &str, directory: bool) -> Result<(), Error> {
        self.way(path)?;
        match (self.kind(path).ok_or(Error::NotFound)?, directory) {
            (Kind::Directory, false) => return Err(Error::IsDirectory),
            (Kind::Directory, true) if !self.below(path).is_empty() => return Err(Error::NotEmpty),
            (Kind::Directory, true) | (_, false) => {}
            (_, true) => return Err(Error::NotDirectory),
        }
        self.names.remove(path);
        Ok(())
    }

    /// Takes a name out, with all that is below it.
    fn take(&mut self, path: &str) -> Vec<(String, u64)> {
        let mut taken = self.below(path);
        taken.push((path.into(), self.names[path]));
        for (name, _) in &mut taken {
            self.names.remove(name);
            *name = name[path.len()..].into();
        }
        taken
    }

    fn put(&mut self, path: &str, taken: Vec<(String, u64)>) {
        self.names.extend(taken.into_iter().map(|(rest, inode)| (format!("{path}{rest}"), inode)));
    }

    fn rename(&mut self, old: &str, new: &str, options: &RenameOptions) -> Result<(), Error> {
        self.way(old)?;
        self.way(new)?;
        let source = self.kind(old).ok_or(Error::NotFound)?;
        let target = self.kind(new);
        match target {
            Some(_) if options.no_replace => return Err(Error::Exists),
            None if options.exchange => return Err(Error::NotFound),
            _ => {}
        }
        if new.starts_with(&format!("{old}/")) {
            return Err(Error::Invalid);
        }
        if old.starts_with(&format!("{new}/")) {
            return Err(if options.exchange { Error::Invalid } else { Error::NotEmpty });
        }
        if self.names.get(new) == self.names.get(old) {
            return Ok(());
        }
        if options.exchange {
            let (one, other) = (self.take(old), self.take(new));
            self.put(old, other);
            self.put(new, one);
            return Ok(());
        }
        match (source == Kind::Directory, target) {
            (true, Some(Kind::Directory)) if !self.below(new).is_empty() => return Err(Error::NotEmpty),
            (true, Some(Kind::Directory)) | (_, None) => {}
            (true, Some(_)) => return Err(Error::NotDirectory),
            (false, Some(Kind::Directory)) => return Err(Error::IsDirectory),
            (false, Some(_)) => {}
        }
        self.names.remove(new);
        let taken = self.take(old);
        self.put(new, taken);
        Ok(())
    }

    /// Compares the file system with it.
    fn assert_is(&self, fs: &TestFs<'_>, seed: u64) {
        let root = fs.root();
        let walk = paths(&root);
        let mut found = 0;
        for (path, inode) in &self.names {
            let stat = walk.lookup(path.as_bytes(), false).unwrap().stat();
            assert_eq!((stat.inode, stat.kind), (*inode, self.kinds[inode]), "seed {seed}: {path}");
            if stat.kind == Kind::Directory {
                let names = self.below(path);
                let own = names.iter().filter(|(name, _)| Self::parent(name) == path);
                let own: Vec<u64> = own.map(|(_, inode)| *inode).collect();
                let below = own.iter().filter(|inode| self.kinds[inode] == Kind::Directory).count();
                assert_eq!(stat.size, 40 + 20 * own.len() as u64, "seed {seed}: {path}");
                assert_eq!(stat.links as usize, 2 + below, "seed {seed}: {path}");
            } else {
                assert_eq!(stat.links as usize, self.links(*inode), "seed {seed}: {path}");
            }
            found += 1;
        }
        let inodes: std::collections::BTreeSet<_> = self.names.values().collect();
        assert_eq!(fs.usage().inodes, 1 + inodes.len() as u64, "seed {seed}: {found} names");
    }
}

fn path(random: &mut Random) -> String {
    let depth = 1 + random.below(4);
    let parts: Vec<&str> = (0..depth).map(|_| *random.pick(&["a", "b", "c", "d"])).collect();
    parts.join("/")
}

#[test]
fn random_calls_are_those_of_a_model() {
    for seed in 1..=20 {
        with_fs(&Options::default(), |fs| {
            let mut random = Random(seed);
            let mut model = Model::default();
            let root = fs.root();
            let walk = paths(&root);
            let mut done = 0;
            for number in 0..1500 {
                let (one, other) = (path(&mut random), path(&mut random));
                let (ours, theirs) = match random.below(10) {
                    kind @ 0..=3 => {
                        let new = if kind < 3 { New::Directory } else { New::Regular };
                        let ours = walk.create(one.as_bytes(), new, &USER);
                        let theirs = match (model.way(&one), model.kind(&one)) {
                            (Err(error), _) => Err(error),
                            (Ok(()), Some(_)) => Err(Error::Exists),
                            (Ok(()), None) => Ok(()),
                        };
                        if let (Ok(node), Ok(())) = (&ours, theirs) {
                            model.names.insert(one.clone(), node.stat().inode);
                            model.kinds.insert(node.stat().inode, node.stat().kind);
                        }
                        (ours.map(drop), theirs)
                    }
                    4 => {
                        let ours = walk
                            .lookup(one.as_bytes(), false)
                            .and_then(|target| walk.link(&target, other.as_bytes()));
                        (ours, model.link(&one, &other))
                    }
                    5 => (walk.unlink(one.as_bytes()), model.remove(&one, false)),
                    6 => (walk.remove_directory(one.as_bytes()), model.remove(&one, true)),
                    _ => {
                        let options = RenameOptions {
                            no_replace: random.below(6) == 0,
                            exchange: false,
                            whiteout: None,
                        };
                        let options = RenameOptions {
                            exchange: !options.no_replace && random.below(3) == 0,
                            ..options
                        };
                        let ours = walk.rename(one.as_bytes(), other.as_bytes(), &options);
                        (ours, model.rename(&one, &other, &options))
                    }
                };
                assert_eq!(ours, theirs, "seed {seed}, call {number}: {one}, {other}");
                done += usize::from(ours.is_ok());
                if number % 100 == 0 {
                    model.assert_is(fs, seed);
                }
            }
            model.assert_is(fs, seed);
            assert!(done > 100, "only {done} calls did something");
        });
    }
}

#[test]
fn a_directory_of_many_names_finds_and_lists_each() {
    with_fs(&Options::default(), |fs| {
        let root = fs.root();
        let mut random = Random(7);
        let mut expected = Vec::new();
        for number in 0..4000 {
            let name = format!("{}{}", random.below(1 << 40), "x".repeat(random.below(200) as usize));
            if root.create(name.as_bytes(), New::Fifo, &USER).is_ok() {
                expected.push(name);
            }
            if number % 3 == 0 {
                let gone = expected.remove(random.below(expected.len() as u64) as usize);
                root.unlink(gone.as_bytes()).unwrap();
                assert_eq!(root.lookup(gone.as_bytes()).err(), Some(Error::NotFound));
            }
        }
        for name in &expected {
            assert!(root.lookup(name.as_bytes()).is_ok(), "{name}");
        }
        expected.reverse();
        assert_eq!(names(&root), expected);
    });
}
