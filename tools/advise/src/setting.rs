//! The settings that are tried, and the commands that apply them.

use crate::shared;
use quire_arch::Order;
use quire_mm::{
    Techniques,
    file::ShmemHuge,
    space::TablesTechnique,
    thp::{HugeConfig, HugeEnabled, HugePolicy, KhugepagedConfig, KhugepagedSetting, OrderSet, SizeEnabled},
};
use quire_replay::{recorded_huge_config, recorded_shmem_huge};
use quire_trace::format::TraceHeader;
use std::time::Duration;

/// One combination of settings.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setting {
    /// Its name, as words that can be passed on: `thp=always,max_ptes_none=0`.
    pub name: String,
    /// The files of `/sys/kernel/mm/transparent_hugepage`, but for those for shared memory.
    pub huge: HugeConfig,
    /// Those of them for shared memory.
    pub shmem: ShmemHuge,
    /// The techniques. Linux keeps empty page tables; the others are on as they are by default.
    pub techniques: Techniques,
    /// It is what the host had when the program was recorded.
    pub is_present: bool,
}

/// The folder of the settings.
pub const FOLDER: &str = "/sys/kernel/mm/transparent_hugepage";

/// The command that keeps what these files have in a variable. What it already keeps is from before the
/// setting was applied first.
fn keep(variable: &str, files: &[String]) -> Option<String> {
    (!files.is_empty()).then(|| format!(r#": "${{{variable}:=$(grep -H . {})}}""#, files.join(" ")))
}

/// Brings back what [`keep`] kept: of a file of words the one in brackets, of a number the number. Then
/// nothing is kept any more.
fn restore(variable: &str) -> String {
    format!(
        r#"echo "${{{variable}:?}}" | while IFS=:[] read f a w x; do echo ${{w:-$a}} >$f; done; {variable}="#
    )
}

/// The name of the setting without huge pages.
pub(crate) const NEVER: &str = "thp=never";

/// The techniques of a setting that a host can be brought to.
fn of_linux() -> Techniques {
    let mut techniques = Techniques::default();
    techniques.tables = TablesTechnique::Keep;
    techniques
}

/// The states of all techniques, as words of the command line.
fn states(techniques: &Techniques) -> [String; Techniques::NAMES.len()] {
    let Techniques { pcp, gather, tables, mremap, swap, .. } = techniques;
    [
        format!("pcp={}", pcp.name()),
        format!("gather={}", gather.name()),
        format!("tables={}", tables.name()),
        format!("mremap={}", mremap.name()),
        format!("swap={}", swap.name()),
    ]
}

/// The phases of khugepaged that are tried, as shares of its interval: its first scan is at a
/// random time.
const PHASES: [f64; 2] = [0.25, 0.75];

/// The phases of khugepaged in which a setting is replayed.
pub(crate) fn phases(setting: &Setting) -> Vec<Option<Duration>> {
    if !setting.runs_khugepaged() {
        return vec![None];
    }
    let pace = setting.huge.khugepaged.get(KhugepagedSetting::ScanSleepMillisecs);
    PHASES.map(|share| Some(Duration::from_millis(u64::from(pace)).mul_f64(share))).into()
}

/// Orders of folios between a page and the PMD's, which Linux calls mTHP.
fn small_orders() -> impl Iterator<Item = Order> {
    OrderSet::ANONYMOUS.iter().filter(|&order| order < Order::PMD)
}

/// The size of a folio as its folder in `/sys` names it.
fn kib(order: Order) -> u64 {
    order.bytes() >> 10
}

/// The file that enables folios of a size.
fn size_file(order: Order) -> String {
    format!("hugepages-{}kB/enabled", kib(order))
}

/// The size as people write it: 64K, 1M.
fn size(order: Order) -> String {
    match kib(order) {
        kib if kib >= 1024 => format!("{}M", kib / 1024),
        kib => format!("{kib}K"),
    }
}

impl Setting {
    fn new(name: impl Into<String>, (huge, shmem): (HugeConfig, ShmemHuge)) -> Self {
        Self { name: name.into(), huge, shmem, techniques: of_linux(), is_present: false }
    }

    /// Whether a host that runs Linux can be set so.
    #[must_use]
    pub fn is_of_linux(&self) -> bool {
        self.techniques == of_linux()
    }

    /// The setting of this name, for the program of a recording: one of [`grid`], or one of these with
    /// techniques, as `thp=always,gather=pages`.
    #[must_use]
    pub fn named(header: &TraceHeader, name: &str) -> Option<Self> {
        let all = grid(header);
        let mut words = name.split(',');
        // The name of a setting of the grid has commas, too: the longest is taken.
        let mut techniques: Vec<&str> = Vec::new();
        while techniques.len() <= Techniques::NAMES.len() {
            let rest: Vec<&str> = words.clone().collect();
            let rest = rest.join(",");
            if let Some(setting) = all.iter().find(|setting| setting.name == rest) {
                let mut words = techniques.iter().rev();
                return words.try_fold(setting.clone(), |setting, word| setting.with_technique(word));
            }
            techniques.push(words.next_back()?);
        }
        None
    }

    /// The same with a technique in another state, `NAME=VALUE`; none if there is no such.
    pub(crate) fn with_technique(&self, word: &str) -> Option<Self> {
        let mut changed = self.clone();
        let (name, value) = word.split_once('=')?;
        changed.techniques.set(name, value).ok()?;
        (changed.name, changed.is_present) = (format!("{},{word}", self.name), false);
        Some(changed)
    }

    /// The same with the techniques of another setting.
    pub(crate) fn with_techniques_of(&self, other: &Self) -> Self {
        let words = states(&self.techniques).into_iter().zip(states(&other.techniques));
        let differing = words.filter(|(own, word)| own != word);
        differing.fold(self.clone(), |setting, (_, word)| setting.with_technique(&word).unwrap_or(setting))
    }

    /// Whether khugepaged has anything to do under it.
    #[must_use]
    pub fn runs_khugepaged(&self) -> bool {
        let orders = self.huge.policy.enabled_orders(true);
        orders.contains(Order::PMD)
    }

    /// The files of `/sys/kernel/mm/transparent_hugepage` that affect predictions, and their values. Those of
    /// the sizes that this host has.
    pub(crate) fn files(&self, has: impl Fn(&str) -> bool) -> Vec<(String, String)> {
        let policy = self.huge.policy;
        let sizes = OrderSet::ANONYMOUS.iter().map(|order| (size_file(order), policy.size(order).name()));
        let mut files: Vec<_> = sizes.filter(|(file, _)| has(file)).collect();
        files.extend(shared::words(self.shmem).filter(|(file, _)| has(file)));
        files.push(("enabled".to_owned(), policy.enabled().name()));
        files.push(("defrag".to_owned(), policy.defrag().name()));
        let mut files: Vec<_> = files.into_iter().map(|(file, word)| (file, word.to_owned())).collect();
        files.extend(KhugepagedSetting::ALL.iter().map(|&setting| {
            (format!("khugepaged/{}", setting.name()), self.huge.khugepaged.get(setting).to_string())
        }));
        files
    }

    /// The commands that bring a host from `present` to this setting: lines for one shell of root's. They
    /// keep what is there in a variable of the setting's own, for [`undo`](Self::undo). Settings that are
    /// applied one after the other are undone in the other order.
    #[must_use]
    pub fn commands(&self, present: &Self) -> Vec<String> {
        self.commands_in(FOLDER, present)
    }

    /// The name of a variable of a shell.
    fn variable(&self) -> String {
        self.name.chars().filter(char::is_ascii_alphanumeric).collect()
    }

    fn commands_in(&self, folder: &str, present: &Self) -> Vec<String> {
        let words = self.words(present);
        let files: Vec<String> = words.iter().map(|(_, file)| format!("{folder}/{file}")).collect();
        let set = words.iter().map(|(word, file)| format!("echo {word} > {folder}/{file}"));
        keep(&self.variable(), &files).into_iter().chain(set).collect()
    }

    /// The commands that undo [`commands`](Self::commands), for the same shell: they bring back what was
    /// there, which need not be what there was when the program was recorded.
    #[must_use]
    pub fn undo(&self, present: &Self) -> Vec<String> {
        let is_there = !self.words(present).is_empty();
        is_there.then(|| restore(&self.variable())).into_iter().collect()
    }

    /// [`commands`](Self::commands) in few words, for a shell in [`FOLDER`].
    #[must_use]
    pub fn short_commands(&self, present: &Self) -> String {
        let kept: Vec<String> = self.words(present).into_iter().map(|(_, file)| file).collect();
        let mut files: Vec<(String, Vec<String>)> = Vec::new();
        for (word, file) in self.words(present) {
            match files.last_mut().filter(|(last, _)| *last == word) {
                Some((_, files)) => files.push(file),
                None => files.push((word, vec![file])),
            }
        }
        let commands = files.into_iter().map(|(word, files)| match &files[..] {
            [file] => format!("echo {word} >{file}"),
            _ => format!("echo {word} | tee {}", files.join(" ")),
        });
        keep(&self.variable(), &kept).into_iter().chain(commands).collect::<Vec<_>>().join("; ")
    }

    /// The files in which a host set like this differs from one set as `other`, with their words here.
    pub(crate) fn differing(&self, other: &Self) -> String {
        let words = self.words(other).into_iter().map(|(word, file)| format!("{file}={word}"));
        let (defrag, others) = (self.huge.policy.defrag(), other.huge.policy.defrag());
        let defrag = (defrag != others).then(|| format!("defrag={}", defrag.name()));
        words.chain(defrag).collect::<Vec<_>>().join(", ")
    }

    /// What is to be written to which file below [`FOLDER`] on a host that is set as `present`, in this
    /// order.
    fn words(&self, present: &Self) -> Vec<(String, String)> {
        let mut words = Vec::new();
        let mut write = |word: &str, file: &str| words.push((word.to_owned(), file.to_owned()));
        let (new, old) = (&self.huge, &present.huge);
        // Sizes first: `enabled` is what those that inherit follow.
        for order in
            OrderSet::ANONYMOUS.iter().filter(|&order| new.policy.size(order) != old.policy.size(order))
        {
            write(new.policy.size(order).name(), &size_file(order));
        }
        if new.policy.enabled() != old.policy.enabled() {
            write(new.policy.enabled().name(), "enabled");
        }
        for ((file, word), (_, old)) in shared::words(self.shmem).zip(shared::words(present.shmem)) {
            if word != old {
                write(word, &file);
            }
        }
        for &setting in KhugepagedSetting::ALL {
            let value = new.khugepaged.get(setting);
            if value != old.khugepaged.get(setting) {
                write(&value.to_string(), &format!("khugepaged/{}", setting.name()));
            }
        }
        words
    }
}

/// The settings that are tried for the program of a recording, those of the host that made it first. None
/// that this host does not have: the kernel may know no sizes but the PMD's.
#[must_use]
pub fn grid(header: &TraceHeader) -> Vec<Setting> {
    let has = |order| match &header.settings {
        Some(settings) => settings.thp_file(&size_file(order)).is_some(),
        // Nothing is known of it.
        None => true,
    };
    // Of old recordings it is not known what there was for shared memory.
    let shmem = recorded_shmem_huge(header).or(header.settings.is_none().then_some(ShmemHuge::NEVER));
    let mut settings = grid_with((recorded_huge_config(header).unwrap_or_default(), shmem), has);
    if let Some((shmem, present)) = shmem.zip(settings.first()) {
        let others = shared::others(shmem);
        let others: Vec<Setting> =
            others.map(|(name, shmem)| Setting::new(name, (present.huge, shmem))).collect();
        let last = settings.pop();
        settings.extend(others.into_iter().chain(last));
    }
    settings
}

/// Those of the [`grid`] that are tried for programs that have so many bytes of shared memory, and so many in
/// large folios.
pub(crate) fn tried(header: &TraceHeader, bytes: (u64, u64)) -> Vec<Setting> {
    let mut settings = grid(header);
    let matters = shared::matters(bytes);
    let present = settings.first().map(|present| present.shmem);
    settings.retain(|setting| matters || Some(setting.shmem) == present);
    settings
}

/// The same without those of shared memory, of a host that is set as `present` and has folders of the orders
/// that `has` tells.
#[cfg(test)]
pub(crate) fn grid_of(present: HugeConfig, has: impl Fn(Order) -> bool) -> Vec<Setting> {
    grid_with((present, None), has)
}

/// The same of a host that has these settings for shared memory, if that is known.
fn grid_with((present, shmem): (HugeConfig, Option<ShmemHuge>), has: impl Fn(Order) -> bool) -> Vec<Setting> {
    let shmem = shmem.unwrap_or_default();
    let policy = |enabled| {
        let sizes = SizeEnabled::Inherit;
        let none = present.policy.with_sizes(OrderSet::ANONYMOUS, SizeEnabled::Never);
        none.with_sizes(OrderSet::PMD, sizes).with_enabled(enabled)
    };
    // khugepaged keeps the host's intervals.
    let none = |most: u32| {
        let khugepaged = present.khugepaged.with(KhugepagedSetting::MaxPtesNone, most);
        khugepaged.unwrap_or(present.khugepaged)
    };
    let any_empty = none(KhugepagedConfig::LINUX.get(KhugepagedSetting::MaxPtesNone));
    let with = |policy: HugePolicy| (HugeConfig { policy, khugepaged: any_empty, ..present }, shmem);
    let always = with(policy(HugeEnabled::Always)).0;
    // Smaller sizes come beside what programs ask for by madvise, where the host allows that.
    let asked = match present.policy.enabled() {
        HugeEnabled::Never => policy(HugeEnabled::Never),
        HugeEnabled::Madvise | HugeEnabled::Always => policy(HugeEnabled::Madvise),
    };
    let mut settings = vec![
        Setting::new("thp=never", with(policy(HugeEnabled::Never))),
        Setting::new("thp=madvise", with(policy(HugeEnabled::Madvise))),
        Setting::new("thp=always", (always, shmem)),
        Setting::new("thp=always,max_ptes_none=0", (HugeConfig { khugepaged: none(0), ..always }, shmem)),
    ];
    for order in small_orders().filter(|&order| has(order)) {
        let policy = asked.with_sizes(OrderSet::of(order), SizeEnabled::Always);
        settings.push(Setting::new(format!("mthp={}", size(order)), with(policy)));
    }
    let up_to_64k = OrderSet::ANONYMOUS.up_to(Order::new(4).unwrap_or(Order::ZERO));
    let small = OrderSet::ANONYMOUS.below(Order::PMD);
    let has_all = |sizes: OrderSet| sizes.iter().all(&has);
    for (name, sizes) in [("mthp=16K-64K", up_to_64k), ("mthp=16K-1M", small)] {
        if has_all(sizes) {
            settings.push(Setting::new(name, with(asked.with_sizes(sizes, SizeEnabled::Always))));
        }
    }
    if has_all(up_to_64k) {
        let both = always.policy.with_sizes(up_to_64k, SizeEnabled::Always);
        settings.push(Setting::new("thp=always,mthp=16K-64K", with(both)));
    }
    let found = settings.iter().position(|setting| setting.huge == present);
    let mut first = match found {
        Some(place) => settings.remove(place),
        None => Setting::new("present", (present, shmem)),
    };
    first.is_present = true;
    let mut freed = first.clone();
    (freed.name, freed.is_present) = (format!("{},tables=free", first.name), false);
    freed.techniques.tables = TablesTechnique::Free;
    settings.insert(0, first);
    settings.push(freed);
    settings
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grid(present: HugeConfig) -> Vec<Setting> {
        grid_of(present, |_| true)
    }

    #[test]
    fn the_present_setting_comes_first_and_once() {
        let settings = grid(HugeConfig::default());
        assert_eq!((settings[0].name.as_str(), settings[0].is_present), ("thp=madvise", true));
        assert_eq!(settings.iter().filter(|setting| setting.is_present).count(), 1);
        let mut names: Vec<_> = settings.iter().map(|setting| setting.name.clone()).collect();
        assert_eq!(names.last().map(String::as_str), Some("thp=madvise,tables=free"));
        let of_linux = settings.iter().filter(|setting| setting.is_of_linux()).count();
        assert_eq!(of_linux, settings.len() - 1, "only the last frees empty tables");
        names.sort();
        names.dedup();
        assert_eq!(names.len(), settings.len());
        let strange =
            HugeConfig { policy: HugePolicy::default().with_zero_page(false), ..HugeConfig::default() };
        assert_eq!(grid(strange)[0].name, "thp=madvise", "other switches stay as they are");
        let fast = HugeConfig::default().khugepaged.with(KhugepagedSetting::ScanSleepMillisecs, 100).unwrap();
        let settings = grid(HugeConfig { khugepaged: fast, ..HugeConfig::default() });
        assert_eq!(settings[0].name, "thp=madvise");
        assert!(
            settings
                .iter()
                .all(|setting| setting.huge.khugepaged.get(KhugepagedSetting::ScanSleepMillisecs) == 100)
        );
        let policy = HugePolicy::default().with_sizes(OrderSet::ANONYMOUS, SizeEnabled::Madvise);
        assert_eq!(grid(HugeConfig { policy, ..HugeConfig::default() })[0].name, "present");
    }

    /// A host may be set otherwise than the one that the program was recorded on.
    #[test]
    fn what_was_there_when_a_setting_was_applied_comes_back() {
        let settings = grid(HugeConfig::default());
        let folder = tempfile::tempdir().unwrap();
        let path = |file: &str| folder.path().join(file);
        for name in ["khugepaged", "hugepages-64kB", "hugepages-2048kB"] {
            std::fs::create_dir(path(name)).unwrap();
        }
        // A file of /sys shows the words that it knows.
        let before = [
            ("enabled", "always madvise [never]"),
            ("khugepaged/max_ptes_none", "64"),
            ("hugepages-64kB/enabled", "always [inherit] madvise never"),
        ];
        let sh = |lines: &[String]| {
            let status = std::process::Command::new("sh").args(["-c", &lines.join("\n")]).status();
            assert!(status.unwrap().success(), "{lines:?}");
            before.map(|(file, _)| std::fs::read_to_string(path(file)).unwrap().trim().to_owned())
        };
        for name in ["thp=always,max_ptes_none=0", "mthp=64K"] {
            before.iter().for_each(|(file, text)| std::fs::write(path(file), format!("{text}\n")).unwrap());
            let setting = settings.iter().find(|setting| setting.name == name).unwrap();
            let applied = setting.commands_in(folder.path().to_str().unwrap(), &settings[0]);
            let set = sh(&applied);
            if name == "mthp=64K" {
                assert_eq!(set, [before[0].1, before[1].1, "always"]);
            } else {
                assert_eq!(set, ["always", "0", before[2].1]);
            }
            before.iter().for_each(|(file, text)| std::fs::write(path(file), format!("{text}\n")).unwrap());
            let undone = sh(&[applied, setting.undo(&settings[0])].concat());
            let expected = if name == "mthp=64K" {
                [before[0].1, "64", "inherit"]
            } else {
                ["never", "64", before[2].1]
            };
            assert_eq!(undone, expected);
        }
        // Two that change the same file, the second of them twice, and then undone in the other order.
        let [first, second] = ["thp=always", "thp=always,max_ptes_none=0"]
            .map(|name| settings.iter().find(|setting| setting.name == name).unwrap());
        let [apply_first, apply_second] =
            [first, second].map(|setting| setting.commands_in(folder.path().to_str().unwrap(), &settings[0]));
        let [undo_first, undo_second] = [first, second].map(|setting| setting.undo(&settings[0]));
        let write = || {
            before.iter().for_each(|(file, text)| std::fs::write(path(file), format!("{text}\n")).unwrap());
        };
        write();
        let all =
            [&apply_first, &apply_second, &apply_second, &undo_second, &undo_first].map(|lines| &lines[..]);
        assert_eq!(sh(&all.concat()), ["never", "64", before[2].1]);
        // What is kept is as old as the setting: a second time it is kept anew.
        write();
        let again = format!("echo '[madvise]' > {}", path("enabled").display());
        let all = [&apply_first[..], &undo_first[..], &[again], &apply_first[..], &undo_first[..]];
        assert_eq!(sh(&all.concat()), ["madvise", before[1].1, before[2].1]);
        // In another shell nothing is known of it, and nothing is written.
        let undo = settings[1].undo(&settings[0]).concat();
        let output = std::process::Command::new("sh").args(["-c", &undo]).output().unwrap();
        assert!(String::from_utf8_lossy(&output.stderr).contains("thp"), "{output:?}");
    }

    #[test]
    fn commands_lead_there_and_back() {
        let settings = grid(HugeConfig::default());
        let find = |name: &str| settings.iter().find(|setting| setting.name == name).unwrap();
        let (present, tight) = (&settings[0], find("thp=always,max_ptes_none=0"));
        let folder = FOLDER;
        assert_eq!(
            tight.commands(present),
            [
                format!(
                    r#": "${{thpalwaysmaxptesnone0:=$(grep -H . {folder}/enabled {folder}/khugepaged/max_ptes_none)}}""#
                ),
                format!("echo always > {folder}/enabled"),
                format!("echo 0 > {folder}/khugepaged/max_ptes_none")
            ]
        );
        assert_eq!(
            find("mthp=64K").commands(present)[1..],
            [format!("echo always > {folder}/hugepages-64kB/enabled")],
            "what programs ask for by madvise stays"
        );
        assert_eq!(
            find("mthp=16K-64K").short_commands(present),
            ": \"${mthp16K64K:=$(grep -H . hugepages-64kB/enabled hugepages-32kB/enabled \
             hugepages-16kB/enabled)}\"; echo always | tee hugepages-64kB/enabled hugepages-32kB/enabled hugepages-16kB/enabled"
        );
        assert!(
            tight
                .short_commands(present)
                .ends_with("; echo always >enabled; echo 0 >khugepaged/max_ptes_none")
        );
        for empty in [present, settings.last().unwrap()] {
            assert!(empty.commands(present).is_empty() && empty.undo(present).is_empty());
            assert!(empty.short_commands(present).is_empty());
        }
    }

    #[test]
    fn sizes_that_the_host_does_not_have_are_not_tried() {
        let names = |has: fn(Order) -> bool| -> Vec<String> {
            grid_of(HugeConfig::default(), has).into_iter().map(|setting| setting.name).collect()
        };
        assert!(names(|_| false).iter().all(|name| !name.contains("mthp")));
        let some = names(|order| order.get() <= 4);
        assert!(some.iter().any(|name| name == "mthp=16K-64K") && some.iter().any(|name| name == "mthp=64K"));
        assert!(some.iter().all(|name| name != "mthp=128K" && name != "mthp=16K-1M"));
    }

    #[test]
    fn a_validation_sets_all_that_affects_it() {
        let setting = &grid(HugeConfig::default())[0];
        let names = |has: fn(&str) -> bool| -> Vec<String> {
            setting.files(has).into_iter().map(|(file, _)| file).collect()
        };
        let all = names(|_| true);
        for file in ["enabled", "defrag", "hugepages-64kB/enabled", "khugepaged/scan_sleep_millisecs"] {
            assert!(all.iter().any(|name| name == file), "{file}: {all:?}");
        }
        assert!(names(|_| false).iter().all(|name| !name.contains("hugepages-")));
    }
}
