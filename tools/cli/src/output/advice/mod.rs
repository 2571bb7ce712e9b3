//! What `quire advise` prints.

mod amounts;
mod change;
mod forks;
mod limits;
mod objects;
mod range;
mod remarks;
mod table;
mod validation;
mod verdict;

use super::losses::losses;
use super::{say, say_line, say_wrapped, shorten};
pub(crate) use objects::objects;
use quire_advise::{Prediction, Setting};
use remarks::remarks;
use table::table;
pub(crate) use validation::print_validations;
pub(crate) use verdict::verdict;

/// Prints the tables and the verdict, `drawn` with memory over time as a line of blocks.
pub(crate) fn print(prediction: &Prediction, drawn: bool) {
    let Prediction { command, recordings, seconds, differences, exactness, .. } = prediction;
    let of = if *recordings == 1 { "a recording".to_owned() } else { format!("{recordings} recordings") };
    say(format_args!(
        "{}: {of}, {seconds:.1} s; {differences} differences from Linux\n{exactness}",
        shorten(command, 60)
    ));
    for (_, what) in losses(prediction.lost, prediction.unheard) {
        say_wrapped(&format!("But {what}."));
    }
    say("");
    say(table(prediction, true, drawn));
    forks::print(prediction);
    limits::print(&prediction.limits, prediction.own_seconds);
    print_verdict(prediction);
    remarks(prediction).iter().for_each(|line| say_wrapped(line));
}

/// As [`print()`], with the rows that the verdict names, and some that most people ask for.
pub(crate) fn print_short(prediction: &Prediction) {
    let verdict = &prediction.verdict;
    let named: Vec<usize> = [&verdict.least_memory, &verdict.fewest_faults, &verdict.most_memory]
        .into_iter()
        .flatten()
        .map(|gain| gain.place)
        .collect();
    let asked = ["thp=never", "thp=madvise", "thp=always", "mthp=64K"];
    let is_shown = |place: usize, setting: &Setting| {
        place == 0 || named.contains(&place) || asked.contains(&setting.name.as_str())
    };
    let each = prediction.rows.iter().zip(&prediction.changes).enumerate();
    let shown = each.filter(|(place, ((setting, _), _))| is_shown(*place, setting));
    let mut short = prediction.clone();
    (short.rows, short.changes) = shown.map(|(_, (row, change))| (row.clone(), *change)).unzip();
    say(table(&short, false, false));
    print_verdict(prediction);
}

fn print_verdict(prediction: &Prediction) {
    for line in verdict(prediction) {
        // Commands are to be copied.
        if line.starts_with(' ') {
            say_line(line);
        } else {
            say_wrapped(&line);
        }
    }
}
