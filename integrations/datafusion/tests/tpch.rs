//! Runs the 22 queries on a small amount of data, and checks that every store returns the same rows.

#![allow(clippy::unwrap_used, reason = "a test panics on anything unexpected")]

use std::path::Path;

use datafusion::prelude::SessionContext;
use ringfile_datafusion::rows::Rows;
use ringfile_datafusion::side::Side;
use ringfile_datafusion::tpch::Queries;
use ringfile_datafusion::{tables, tpch};

const SCALE: f64 = 0.05;

async fn rows(folder: &Path, side: Side) -> Vec<Rows> {
    let context = SessionContext::new();
    side.register(&context.runtime_env()).unwrap();
    assert_eq!(tables::register(&context, folder).await.unwrap().len(), 8);
    let mut all = Vec::new();
    for number in 1..=tpch::QUERIES {
        all.push(tpch::run(&context, number, SCALE).await.unwrap());
    }
    all
}

#[tokio::test(flavor = "multi_thread")]
async fn all_queries_give_the_same_rows_with_every_store() {
    // A folder in which O_DIRECT works, unlike on a tmpfs.
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let data = tpch::generate(folder.path(), SCALE).unwrap();
    let expected = rows(&data, Side::Local).await;
    let some = expected.iter().filter(|rows| !rows.is_empty()).count();
    assert!(some >= 20, "only {some} queries give rows");
    for side in Side::ALL.into_iter().filter(|side| *side != Side::Local) {
        let before = ringfile::metrics();
        for (at, (rows, expected)) in rows(&data, side).await.iter().zip(&expected).enumerate() {
            rows.expect(expected).unwrap_or_else(|error| panic!("query {}, {side}: {error}", at + 1));
        }
        assert!((ringfile::metrics() - before).bytes_read > 1 << 20, "{side} did not read with ringfile");
    }
}

#[tokio::test]
async fn folders_that_are_no_tables_are_named_in_errors() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let error = |path: &Path| {
        let path = path.to_owned();
        async move { format!("{:#}", tables::register(&SessionContext::new(), &path).await.unwrap_err()) }
    };
    let none = folder.path().join("none");
    assert!(error(&none).await.contains("/none: No such file"), "{}", error(&none).await);
    assert!(error(folder.path()).await.contains("no Parquet files"));
    std::fs::write(folder.path().join("text.parquet"), "no Parquet").unwrap();
    assert!(error(folder.path()).await.contains("text.parquet as Parquet"));
}

#[test]
fn queries_are_named_by_numbers_and_ranges() {
    let queries: Queries = "1, 3-5,22".parse().unwrap();
    assert_eq!(queries, Queries(vec![1, 3, 4, 5, 22]));
    for wrong in ["", "0", "23", "5-3", "1-", "x"] {
        wrong.parse::<Queries>().unwrap_err();
    }
    assert!(tpch::query(11, 5.0).unwrap().contains("* 0.0000200000\n"));
    assert!(tpch::query(0, 1.0).is_err() && tpch::query(23, 1.0).is_err());
}
