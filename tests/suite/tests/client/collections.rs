//! Writes files to Keep and reads them back through a saved collection.

use std::sync::Arc;

use arvados_client::keep::{CollectionWriter, FileReader};
use arvados_client::manifest::Manifest;
use serde_json::json;

use crate::fixture::Fixture;

#[tokio::test(flavor = "multi_thread")]
async fn files_read_back_as_written_by_uuid_and_by_content() {
    let fixture = Fixture::new().await;
    let keep = Arc::new(
        fixture
            .user
            .keep(fixture.user.keep_options().await.unwrap())
            .await
            .unwrap(),
    );
    let mut writer = CollectionWriter::new(keep.clone());
    let large: Vec<u8> = (0..3_000_000u32).map(|n| (n % 251) as u8).collect();
    for (name, bytes) in [
        ("dir/a b.txt", &b"hello"[..]),
        ("empty", b""),
        ("large", &large),
    ] {
        writer.start_file(name).unwrap();
        writer.write(bytes).await.unwrap();
        writer.finish_file();
    }
    let manifest = writer.finish().await.unwrap();
    let saved = fixture
        .user
        .create_collection(json!({"manifest_text": manifest.to_string()}))
        .await
        .unwrap();
    let pdh = saved.portable_data_hash.clone().unwrap();
    assert_eq!(pdh, manifest.pdh());
    for id in [saved.uuid.as_str(), pdh.as_str()] {
        let read =
            Manifest::parse(&fixture.user.collection(id).await.unwrap().manifest_text).unwrap();
        for (name, bytes) in [
            ("dir/a b.txt", &b"hello"[..]),
            ("empty", b""),
            ("large", &large),
        ] {
            let file = read.files().find(|file| file.path == name).unwrap();
            let got = FileReader::new(keep.clone(), &file.extents)
                .read_all(10 << 20)
                .await
                .unwrap();
            assert!(got == bytes, "{name} differs");
        }
    }
}
