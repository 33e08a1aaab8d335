//! TPC-H on LocalFileSystem and on ringfile: generates the data, checks that both return the same rows, and measures.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use clap::{Parser, Subcommand};
use datafusion::prelude::SessionContext;
use ringfile_datafusion::bench::{self, Plan};
use ringfile_datafusion::rows::Rows;
use ringfile_datafusion::side::Side;
use ringfile_datafusion::tpch::Data;
use ringfile_datafusion::{tables, tpch};

/// TPC-H on LocalFileSystem and on ringfile.
#[derive(Debug, Parser)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Write the tables as Parquet files, unless they exist
    Generate(Data),
    /// Check that all queries return the same rows with every store
    Check(Data),
    /// Measure each query with every store, and write the results as Markdown
    Bench {
        #[command(flatten)]
        plan: Plan,
        /// Also write each run's figures, separated by tabs, into this file
        #[arg(long)]
        runs: Option<PathBuf>,
    },
    /// Measure one query; `bench` starts this command for each
    #[command(hide = true)]
    BenchQuery {
        #[command(flatten)]
        plan: Plan,
        number: usize,
    },
}

#[tokio::main]
async fn main() -> Result<()> {
    match Arguments::parse().command {
        Command::Generate(data) => println!("{}", tpch::generate(&data.folder, data.scale)?.display()),
        Command::Check(data) => check(&data).await?,
        Command::Bench { plan, runs } => print!("{}", bench::all(&plan, runs.as_deref())?),
        Command::BenchQuery { plan, number } => bench::one(&plan, number).await?,
    }
    Ok(())
}

async fn check(data: &Data) -> Result<()> {
    let folder = tpch::generate(&data.folder, data.scale)?;
    let queries = &data.queries.0;
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
