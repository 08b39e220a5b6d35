//! Removes what an attempt made on its node: the container and the scratch directory.

use super::context::Attempt;
use super::scratch_dir::ScratchDir;
use container_engine::{Container, Engine};
use host_state::trash::TrashWorker;
use node_cache::image::Image;

impl Attempt<'_> {
    /// Changes the owner of files that the container created as another user. Otherwise they could
    /// be neither saved nor removed.
    pub async fn give_files(
        &self,
        engine: &dyn Engine,
        image: Option<&Image>,
        scratch: &ScratchDir,
    ) {
        let uuid = self.settings.uuid.as_str();
        match engine.give_files(uuid, image, scratch.path()).await {
            Ok(true) => self.log("The container created files as another user; their owner is now this user"),
            Ok(false) => {}
            Err(error) => self.log(format!(
                "Could not change the owner of files that the container created as another user: {error}"
            )),
        }
    }

    /// Removes the container. The files of its root go in the background, while its output is
    /// saved.
    pub async fn remove(&self, container: &dyn Container, scratch: &ScratchDir) {
        if let Err(error) = container.remove().await {
            self.log(format!(
                "Could not remove all of the container from this node: {error}"
            ));
        }
        if let Err(error) = TrashWorker::start(vec![scratch.path().to_owned()]) {
            self.log(format!(
                "The files of the container's root stay until the scratch space is removed: {error}"
            ));
        }
    }

    /// Moves the scratch directory into the trash, with its files owned by this user.
    pub async fn discard_scratch(&self, engine: &dyn Engine, scratch: &ScratchDir) {
        self.give_files(engine, None, scratch).await;
        if let Err(error) = scratch.discard() {
            self.log(format!(
                "Could not remove {} from this node: {error}",
                scratch.path().display()
            ));
        }
    }
}
