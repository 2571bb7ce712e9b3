//! The data of a picture.

use crate::unit::Unit;
use serde_json::{Value, json};

/// A picture: a table of numbers, and how they are drawn. What is drawn is in the table, but for the cells of
/// a [`HeatDrawing`].
#[derive(Clone, PartialEq, Debug)]
pub struct Picture {
    /// A name for scripts, of lower-case letters and hyphens.
    pub name: String,
    /// The heading.
    pub title: String,
    /// What it shows, in a sentence or two for people who are not kernel developers.
    pub explanation: String,
    /// The columns of the table.
    pub columns: Vec<Column>,
    /// Its rows, a cell a column.
    pub rows: Vec<Vec<Cell>>,
    /// How it is drawn.
    pub drawing: Drawing,
}

/// A column of a table.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Column {
    /// Its heading.
    pub name: String,
    /// What its numbers are of.
    pub unit: Unit,
}

impl Column {
    /// A column.
    pub fn new(name: impl Into<String>, unit: Unit) -> Self {
        Self { name: name.into(), unit }
    }
}

/// A cell of a table.
#[derive(Clone, PartialEq, Debug)]
pub enum Cell {
    /// Words.
    Text(String),
    /// A number.
    Number(f64),
    /// Nothing is known.
    None,
}

impl Cell {
    /// Its number, if it is one.
    #[must_use]
    pub fn number(&self) -> Option<f64> {
        match self {
            Self::Number(value) if value.is_finite() => Some(*value),
            _ => None,
        }
    }
}

impl From<Option<f64>> for Cell {
    fn from(value: Option<f64>) -> Self {
        value.map_or(Self::None, Self::Number)
    }
}

impl From<&str> for Cell {
    fn from(text: &str) -> Self {
        Self::Text(text.to_owned())
    }
}

/// How a table is drawn.
#[derive(Clone, PartialEq, Debug)]
pub enum Drawing {
    /// Over the numbers of the first column, each other column: a mark a column. Equal lines are drawn as
    /// one.
    Lines {
        /// What the numbers of the columns are, in words: the title of the axis.
        axis: String,
        /// How each column after the first is drawn.
        marks: Vec<Mark>,
    },
    /// A group of bars a row, which the first columns name: a bar for each of the `bars` columns after those
    /// that are text.
    Bars {
        /// How many bars a group has.
        bars: usize,
        /// Each group has a scale of its own, for rows whose units differ: its largest bar fills the width.
        each_its_own: bool,
        /// The unit of a row stands in this column, where it is not the column's.
        unit_column: Option<usize>,
    },
    /// A line with a mark for each of the columns after the first, on a logarithmic scale: quantiles.
    Quantiles,
    /// Address by time.
    Heat(HeatDrawing),
}

/// How a column is drawn over the first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mark {
    /// A line, told from the others by its colour and its dashes.
    Line,
    /// A thin grey line: one of many.
    Beside,
    /// Points.
    Points,
    /// Points that were measured, larger.
    Measured,
}

/// Addresses by time: a picture in the picture. Its table has a row a run of addresses.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HeatDrawing {
    /// The time that all columns take together, in seconds.
    pub seconds: f64,
    /// Number of columns.
    pub columns: usize,
    /// Ranges of addresses, lowest first; between them nothing is mapped.
    pub runs: Vec<HeatRun>,
}

/// A range of addresses.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct HeatRun {
    /// What it is called.
    pub name: String,
    /// Rows, lowest address first, with a cell a column.
    pub rows: Vec<Vec<HeatCell>>,
}

/// What a part of the addresses holds at one time, each as a share of it from 0 to 1.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct HeatCell {
    /// In memory and touched in this time.
    pub touched_now: f32,
    /// In memory and touched before.
    pub touched_before: f32,
    /// In memory and never touched.
    pub never_touched: f32,
    /// Touched before, and paged out.
    pub paged_out: f32,
}

impl Picture {
    /// Its numbers as a JSON object.
    #[must_use]
    pub fn object(&self) -> Value {
        let cell = |cell: &Cell| match cell {
            Cell::Text(text) => json!(text),
            Cell::Number(value) => json!(value),
            Cell::None => Value::Null,
        };
        json!({
            "picture": self.name,
            "title": self.title,
            "columns": self.columns.iter().map(|column| &column.name).collect::<Vec<_>>(),
            "units": self.columns.iter().map(|column| column.unit.name()).collect::<Vec<_>>(),
            "rows": self.rows.iter().map(|row| row.iter().map(cell).collect::<Vec<_>>()).collect::<Vec<_>>(),
        })
    }

    /// The unit of the number in `column` of `row`.
    pub(crate) fn unit(&self, row: &[Cell], column: usize) -> Unit {
        let by_row = match &self.drawing {
            Drawing::Bars { unit_column, bars, .. } => {
                let first = self.first_number();
                unit_column.filter(|_| (first..first + bars).contains(&column))
            }
            _ => None,
        };
        match by_row.and_then(|column| row.get(column)) {
            Some(Cell::Text(unit)) => Self::unit_of(unit),
            _ => self.columns.get(column).map_or(Unit::Text, |column| column.unit.clone()),
        }
    }

    fn unit_of(name: &str) -> Unit {
        match name {
            "bytes" => Unit::Bytes,
            "ns" => Unit::Nanoseconds,
            "share" => Unit::Share,
            other => Unit::Other(other.to_owned()),
        }
    }

    /// The first column that has numbers.
    pub(crate) fn first_number(&self) -> usize {
        self.columns.iter().position(|column| column.unit != Unit::Text).unwrap_or(self.columns.len())
    }

    /// The largest number among these columns.
    pub(crate) fn most(&self, columns: std::ops::Range<usize>) -> f64 {
        let cells = self.rows.iter().flat_map(|row| row.get(columns.clone()).unwrap_or_default());
        cells.filter_map(Cell::number).fold(0.0, f64::max)
    }
}
