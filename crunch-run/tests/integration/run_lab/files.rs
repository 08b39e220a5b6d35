//! Reads the output and log collections of a job.

use arvados_client::keep::FileReader;
use arvados_client::manifest::Manifest;

use super::{Job, World};

impl World {
    /// The files of the request's output, by path.
    pub async fn output(&self, job: &Job) -> Vec<(String, String)> {
        let request = self.user.container_request(&job.request).await.unwrap();
        let uuid = request
            .output_uuid
            .unwrap_or_else(|| panic!("no output: {:?}", request.state));
        self.files(uuid.as_str()).await
    }

    /// The files of the log, as the request's owner reads them.
    pub async fn log(&self, job: &Job) -> Vec<(String, String)> {
        let request = self.user.container_request(&job.request).await.unwrap();
        let uuid = request
            .log_uuid
            .unwrap_or_else(|| panic!("no log: {:?}", request.state));
        self.files(uuid.as_str()).await
    }

    pub async fn files(&self, collection: &str) -> Vec<(String, String)> {
        let found = self.user.collection(collection).await.unwrap();
        self.files_in(&found.manifest_text).await
    }

    pub async fn files_in(&self, manifest: &str) -> Vec<(String, String)> {
        let manifest = Manifest::parse(manifest).unwrap();
        let mut files = Vec::new();
        for file in manifest.files() {
            let reader = FileReader::new(self.keep.clone(), &file.extents);
            let content = reader.read_all(64 << 20).await.unwrap();
            let text = String::from_utf8_lossy(&content).into_owned();
            files.push((file.path, text));
        }
        files
    }
}

/// The content of the file at `path`.
pub fn file<'a>(files: &'a [(String, String)], path: &str) -> &'a str {
    files
        .iter()
        .find(|(name, _)| name == path)
        .map(|(_, content)| content.as_str())
        .unwrap_or_else(|| {
            let names: Vec<&String> = files.iter().map(|(name, _)| name).collect();
            panic!("no {path} in {names:?}")
        })
}

/// The lines of a log without their timestamps; checks each timestamp.
pub fn lines(text: &str) -> Vec<&str> {
    text.lines()
        .map(|line| {
            let (time, rest) = line.split_once(' ').unwrap_or((line, ""));
            assert_eq!(time.len(), 30, "{line:?} begins with no time");
            time.parse::<jiff::Timestamp>().unwrap();
            rest
        })
        .collect()
}
