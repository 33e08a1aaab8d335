//! TPC-H on LocalFileSystem and on ringfile: makes the data, checks that the rows are the same, and measures.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use datafusion::prelude::SessionContext;
use ringfile_datafusion::bench::{self, Plan};
use ringfile_datafusion::rows::Rows;
use ringfile_datafusion::side::Side;
use ringfile_datafusion::{tables, tpch};

/// TPC-H on LocalFileSystem and on ringfile.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the tables as Parquet files, unless they are there
    Generate(Data),
    /// Check that all queries give the same rows with every store
    Check(Data),
    /// Measure each query with every store, and write the results as Markdown
    Bench(BenchArguments),
    /// Measure one query: what `bench` starts for each
    #[command(hide = true)]
    BenchQuery {
        #[command(flatten)]
        plan: BenchArguments,
        number: usize,
    },
}

#[derive(Clone, Debug, clap::Args)]
struct Data {
    /// The folder that holds the folders of each scale factor
    folder: PathBuf,
    /// The scale factor: about 0.4 GB of files for each
    #[arg(long, default_value_t = 1.0)]
    scale: f64,
    /// The queries, such as 1,3-5
    #[arg(long, default_value = "1-22")]
    queries: String,
}

#[derive(Clone, Debug, clap::Args)]
struct BenchArguments {
    #[command(flatten)]
    data: Data,
    /// Rounds, in each of which every store has its turn
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Run each query in a memory control group (version 1): what it takes at most, plus a quarter of the files
    #[arg(long)]
    limit_memory: bool,
    /// Also write each run's figures, separated by tabs, into this file
    #[arg(long)]
    runs: Option<PathBuf>,
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Generate(data) => println!("{}", tpch::generate(&data.folder, data.scale)?.display()),
        Command::Check(data) => check(&data).await?,
        Command::Bench(arguments) => {
            let markdown = bench::all(&arguments.plan()?, arguments.runs.as_deref())?;
            print!("{markdown}");
        }
        Command::BenchQuery { plan, number } => bench::one(&plan.plan()?, number).await?,
    }
    Ok(())
}

impl BenchArguments {
    fn plan(&self) -> Result<Plan> {
        Ok(Plan {
            folder: self.data.folder.clone(),
            scale: self.data.scale,
            queries: tpch::parse_queries(&self.data.queries)?,
            rounds: self.rounds,
            limit_memory: self.limit_memory,
        })
    }
}

async fn check(data: &Data) -> Result<()> {
    let folder = tpch::generate(&data.folder, data.scale)?;
    let queries = tpch::parse_queries(&data.queries)?;
    let mut expected: Vec<Rows> = Vec::new();
    for side in Side::ALL {
        let context = SessionContext::new();
        side.register(&context.runtime_env())?;
        tables::register(&context, &folder).await?;
        let before = ringfile::metrics();
        for (at, &number) in queries.iter().enumerate() {
            let rows = tpch::run(&context, number, data.scale).await.with_context(|| side.to_string())?;
            match expected.get(at) {
                Some(expected) => rows.expect(expected).with_context(|| format!("query {number}, {side}"))?,
                None => {
                    let known = (data.scale == 1.0).then(|| tpch::ROWS_AT_SCALE_1[number - 1]);
                    ensure!(
                        known.is_none_or(|known| rows.len() == known),
                        "query {number}: {} rows",
                        rows.len()
                    );
                    expected.push(rows);
                }
            }
        }
        let read = (ringfile::metrics() - before).bytes_read;
        ensure!((side == Side::Local) == (read == 0), "{side}: ringfile read {read} bytes");
        println!("{side}: {} queries, {} rows", queries.len(), expected.iter().map(Rows::len).sum::<usize>());
    }
    println!("all the same");
    Ok(())
}
