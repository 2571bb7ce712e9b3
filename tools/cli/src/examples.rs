//! The examples below the help of each command.

pub(crate) const QUIRE: &str = "\
Examples:
  quire                                    a tour on the bundled recordings
  quire advise -- make -j2                 what huge pages or less memory would do for a build
  quire record -o my.qtr -- python3 x.py   record a program; then
  quire replay my.qtr                      compare each result with Linux's
  quire compare my.qtr                     what each technique changes for it

Exit codes: 0 good; 1 the work found a failure; 2 wrong usage or input. `record` and `run` pass
on the exit code of the program.";

pub(crate) const RECORD: &str = "\
Examples:
  quire record -o sort.qtr -- sort -n numbers.txt
  quire record -o - -- ls | ssh host 'cat > ls.qtr'
  quire record -o short.qtr --pressure 64M -- python3 job.py   for memory limits from 64 MiB on";

pub(crate) const IMPORT: &str = "\
Examples:
  valgrind --tool=lackey --trace-mem=yes --log-file=ls.lackey ls
  quire import lackey ls.lackey -o ls.qtr";

pub(crate) const TRACE: &str = "\
Examples:
  quire trace dump my.qtr | grep mremap
  quire trace strip my.qtr to-pass-on.qtr   without paths and arguments";

pub(crate) const REPLAY: &str = "\
Examples:
  quire replay my.qtr                                     figures beside Linux's
  quire replay my.qtr --setting thp=always                under other settings of huge pages
  quire replay my.qtr --limit 100M --swap zram:1G         within a memory limit
  quire replay my.qtr --technique tables=keep --json      without a technique, for scripts
  quire replay my.qtr --report my.html                    a page with pictures";

pub(crate) const EXPORT: &str = "\
Examples:
  quire export perfetto my.qtr -o my.perfetto      open the file in Perfetto's own page
  quire export perfetto my.qtr -o my.perfetto --limit 100M --swap zram:1G";

pub(crate) const RUN: &str = "\
Examples:
  quire run -- gcc -O2 -c main.c
  quire run -o kept.qtr --paranoid -- ./server --exit-after 10";

pub(crate) const ADVISE: &str = "\
Examples:
  quire advise -- ./job --input data        records it three times, and as often under pressure
  quire advise monday.qtr tuesday.qtr       with recordings that are there
  quire advise --validate -- ./job          also measures the advised setting (root)
  quire advise --no-limits --json my.qtr    settings of huge pages only, for scripts
  quire advise --report my.html my.qtr      a page with pictures
  quire advise --from results               what lines of `quire sweep` found, of many programs

Words of the tables:
  present          the settings that this host had when the program was recorded
  thp=always       transparent huge pages of 2 MiB: the file `enabled` in Linux's /sys/kernel/mm
  mthp=64K         large folios (multi-size THP) of that size: the file hugepages-64kB/enabled there
  never touched    memory that is only there because pages are larger
  stalled          estimate of the time that threads wait for pages to come back, and to be freed
  of its time      that, in percent of the recorded time";

pub(crate) const SWEEP: &str = "\
Examples:
  quire sweep -o results recordings/*.qtr > lines      what `quire advise` tries, a line each
  parallel < lines                                     on this machine; docs/sweep.md has others
  quire advise --from results --report fleet.html      what they say together
  quire sweep --grid grid.toml -o results *.qtr        other settings and limits, such as

A grid: lists, of which each that is left out is as `quire advise` has it:
  settings   = [\"thp=always\", \"mthp=64K\"]            with the present one and thp=never
  limits     = [\"90%\", \"75%\", \"256M\"]              of the peak of anonymous memory, or bytes
  swaps      = [\"zram-lz4\", \"zram-zstd\", \"zswap-lz4\", \"disk\"]
  memory     = [\"4G\"]                                RAM of a machine
  techniques = [\"gather=pages\", \"pcp=order0,mremap=ptes\"]   each setting with these, too";

pub(crate) const COMPARE: &str = "\
Examples:
  quire compare my.qtr
  quire compare my.qtr --technique gather --instructions";

pub(crate) const CALIBRATE: &str = "\
Examples:
  quire calibrate      once on a quiet host; `advise` reads the result from then on";

pub(crate) const DIFF: &str = "\
Examples:
  quire diff --seed 7 --ops 300000
  quire diff --swap --save failing.txt     with swap on both sides (root)
  quire diff failing.txt                   run a saved program again";

pub(crate) const LAB: &str = "\
Examples:
  quire lab --quick             every experiment, within a minute
  quire lab gather mremap       two of them, in full
  quire lab tables --json       one JSON object per figure";

pub(crate) const COMPLETIONS: &str = "\
Examples:
  quire completions bash > /etc/bash_completion.d/quire
  quire completions fish > ~/.config/fish/completions/quire.fish";

pub(crate) const MAN: &str = "\
Examples:
  quire man | man -l -
  quire man /usr/local/share/man/man1";
