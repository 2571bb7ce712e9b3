//! What was predicted beside what the program itself did.

use super::change::NO_CHANGE;
use super::limits;
use crate::output::columns::{aligned, headed};
use crate::output::quantity::{count, size};
use crate::output::say;
use comfy_table::Table;
use quire_advise::{Figure, LimitValidation, Range, Validation};

/// Prints what was predicted beside what the program did.
pub(crate) fn print_validations(validations: &[Validation], limited: Option<&LimitValidation>, runs: u16) {
    say(format_args!("\nMeasured on this host, {runs} runs under each setting:"));
    let mut table = headed(["setting", "figure", "predicted", "measured", "error"]);
    for Validation { setting, figures, seconds } in validations {
        add_validation(&mut table, setting, figures, *seconds);
    }
    if let Some(LimitValidation { setting, figures, seconds, .. }) = limited {
        add_validation(&mut table, &setting.name(), figures, *seconds);
    }
    say(aligned(table, 2..));
    if let Some(limited) = limited {
        limits::print_ends(limited, runs);
    }
}

fn add_validation(table: &mut Table, setting: &str, figures: &[Figure], seconds: Range) {
    for figure in figures {
        let error = figure.error();
        table.add_row([
            setting.to_owned(),
            figure.name.replace('_', " "),
            measured(figure.unit, figure.predicted),
            measured(figure.unit, figure.measured),
            error.map_or_else(String::new, |error| format!("{:+.1} %", error * 100.0)),
        ]);
    }
    let time = format!("{:.2} s +-{:.2} s", seconds.median, seconds.spread());
    table.add_row([setting.to_owned(), "run time".to_owned(), String::new(), time, String::new()]);
}

/// A figure of a validation with its range.
fn measured(unit: &str, range: Range) -> String {
    let of = |value: f64| match unit {
        "bytes" => size(value),
        "share" => format!("{:.0} %", value * 100.0),
        _ => count(value),
    };
    if range.spread() == 0.0 || unit == "share" && range.spread() < NO_CHANGE {
        of(range.median)
    } else {
        format!("{} +-{}", of(range.median), of(range.spread()))
    }
}
