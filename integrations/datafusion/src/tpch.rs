//! TPC-H: its data, and its queries with the validation parameters.

use std::fs::{self, File};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use anyhow::{Context, Result, bail, ensure};
use datafusion::parquet::arrow::ArrowWriter;
use datafusion::parquet::basic::Compression;
use datafusion::parquet::file::properties::WriterProperties;
use datafusion::prelude::SessionContext;
use tpchgen::generators::{
    CustomerGenerator, LineItemGenerator, NationGenerator, OrderGenerator, PartGenerator, PartSuppGenerator,
    RegionGenerator, SupplierGenerator,
};
use tpchgen_arrow::{
    CustomerArrow, LineItemArrow, NationArrow, OrderArrow, PartArrow, PartSuppArrow, RecordBatchIterator,
    RegionArrow, SupplierArrow,
};

use crate::rows::Rows;

/// How many queries there are; their numbers begin at 1.
pub const QUERIES: usize = 22;

/// The number of rows that each query returns at scale factor 1, as TPC-H publishes for validation.
pub const ROWS_AT_SCALE_1: [usize; QUERIES] =
    [4, 100, 10, 5, 5, 1, 4, 2, 175, 20, 1048, 2, 42, 1, 1, 18314, 1, 57, 1, 186, 100, 7];

/// The number of rows in a row group. A scan reads one column of a row group at a time: 0.1 to 4 MiB here.
const ROWS_OF_A_GROUP: usize = 128 << 10;

/// The number of files of a large table.
const PARTS: i32 = 4;

const TEXTS: [&str; QUERIES] = [
    include_str!("../queries/q01.sql"),
    include_str!("../queries/q02.sql"),
    include_str!("../queries/q03.sql"),
    include_str!("../queries/q04.sql"),
    include_str!("../queries/q05.sql"),
    include_str!("../queries/q06.sql"),
    include_str!("../queries/q07.sql"),
    include_str!("../queries/q08.sql"),
    include_str!("../queries/q09.sql"),
    include_str!("../queries/q10.sql"),
    include_str!("../queries/q11.sql"),
    include_str!("../queries/q12.sql"),
    include_str!("../queries/q13.sql"),
    include_str!("../queries/q14.sql"),
    include_str!("../queries/q15.sql"),
    include_str!("../queries/q16.sql"),
    include_str!("../queries/q17.sql"),
    include_str!("../queries/q18.sql"),
    include_str!("../queries/q19.sql"),
    include_str!("../queries/q20.sql"),
    include_str!("../queries/q21.sql"),
    include_str!("../queries/q22.sql"),
];

/// Returns the text of a query for data of a scale factor. Numbers of queries begin at 1.
///
/// # Errors
/// If no query has this number.
pub fn query(number: usize, scale: f64) -> Result<String> {
    let text = number.checked_sub(1).and_then(|at| TEXTS.get(at));
    let text = text.with_context(|| format!("there is no query {number}: use 1 to {QUERIES}"))?;
    // Only this parameter, of query 11, depends on the scale factor.
    Ok(text.replace("0.0001000000", &format!("{:.10}", 0.0001 / scale)))
}

/// Runs a query, and returns its rows.
///
/// # Errors
/// If DataFusion cannot plan or run it.
pub async fn run(context: &SessionContext, number: usize, scale: f64) -> Result<Rows> {
    let run =
        async { context.sql(&query(number, scale)?).await?.collect().await.map_err(anyhow::Error::from) };
    Rows::new(&run.await.with_context(|| format!("query {number}"))?)
}

/// The arguments that select the data, and the queries on it.
#[derive(Clone, Debug, clap::Args)]
pub struct Data {
    /// The folder that has a folder for each scale factor
    pub folder: PathBuf,
    /// The scale factor: about 0.4 GB of files for each unit
    #[arg(long, default_value_t = 1.0)]
    pub scale: f64,
    /// The queries, such as 1,3-5
    #[arg(long, default_value = "1-22")]
    pub queries: Queries,
}

/// Numbers of queries, parsed from a text such as `1,3-5`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queries(pub Vec<usize>);

impl FromStr for Queries {
    type Err = anyhow::Error;

    /// # Errors
    /// If the text has no number, or the number of a query that does not exist.
    fn from_str(text: &str) -> Result<Self> {
        let mut queries = Vec::new();
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (usize, usize) = (
                first.trim().parse().with_context(|| format!("{part}: not a number"))?,
                last.trim().parse().with_context(|| format!("{part}: not a number"))?,
            );
            ensure!(
                (1..=QUERIES).contains(&first) && (first..=QUERIES).contains(&last),
                "{part}: queries are 1 to {QUERIES}"
            );
            queries.extend(first..=last);
        }
        Ok(Self(queries))
    }
}

/// One file of a table: the table's name, the number of the part, and the number of parts.
type Part = (&'static str, i32, i32);

/// Writes the tables of a scale factor, unless they exist, into a folder of their own below `folder`. Returns that folder.
///
/// # Errors
/// If a file cannot be written, or the scale factor is not above 0.
pub fn generate(folder: &Path, scale: f64) -> Result<PathBuf> {
    ensure!(scale > 0.0, "the scale factor must be above 0");
    let (done, new) = (folder.join(format!("sf{scale}")), folder.join(format!("sf{scale}.new")));
    if done.is_dir() {
        return Ok(done);
    }
    if new.exists() {
        fs::remove_dir_all(&new).with_context(|| format!("cannot remove {}", new.display()))?;
    }
    let parts = parts();
    let next = AtomicUsize::new(0);
    let work = || -> Result<()> {
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            write(&new, *part, scale)
                .with_context(|| format!("cannot write the table {} into {}", part.0, new.display()))?;
        }
        Ok(())
    };
    thread::scope(|scope| {
        let threads: Vec<_> =
            (0..thread::available_parallelism().map_or(1, NonZero::get)).map(|_| scope.spawn(work)).collect();
        threads.into_iter().try_for_each(|thread| match thread.join() {
            Ok(done) => done,
            Err(_) => bail!("the generator panicked"),
        })
    })?;
    fs::rename(&new, &done).with_context(|| format!("cannot rename {}", new.display()))?;
    Ok(done)
}

fn parts() -> Vec<Part> {
    let large = ["lineitem", "orders", "partsupp", "part", "customer"];
    let small = ["supplier", "nation", "region"];
    let files = large.into_iter().flat_map(|table| (1..=PARTS).map(move |part| (table, part, PARTS)));
    files.chain(small.into_iter().map(|table| (table, 1, 1))).collect()
}

fn write(folder: &Path, (table, part, of): Part, scale: f64) -> Result<()> {
    let batches: Box<dyn RecordBatchIterator> = match table {
        "lineitem" => Box::new(LineItemArrow::new(LineItemGenerator::new(scale, part, of))),
        "orders" => Box::new(OrderArrow::new(OrderGenerator::new(scale, part, of))),
        "partsupp" => Box::new(PartSuppArrow::new(PartSuppGenerator::new(scale, part, of))),
        "part" => Box::new(PartArrow::new(PartGenerator::new(scale, part, of))),
        "customer" => Box::new(CustomerArrow::new(CustomerGenerator::new(scale, part, of))),
        "supplier" => Box::new(SupplierArrow::new(SupplierGenerator::new(scale, part, of))),
        "nation" => Box::new(NationArrow::new(NationGenerator::new(scale, part, of))),
        "region" => Box::new(RegionArrow::new(RegionGenerator::new(scale, part, of))),
        _ => bail!("there is no such table"),
    };
    let folder = folder.join(table);
    fs::create_dir_all(&folder)?;
    let properties = WriterProperties::builder()
        .set_compression(Compression::SNAPPY)
        .set_max_row_group_row_count(Some(ROWS_OF_A_GROUP))
        .build();
    let file = File::create(folder.join(format!("{part}.parquet")))?;
    let mut writer = ArrowWriter::try_new(file, batches.schema().clone(), Some(properties))?;
    for batch in batches {
        writer.write(&batch)?;
    }
    // The data must be on the disk before anything is measured.
    writer.into_inner()?.sync_all()?;
    Ok(())
}
