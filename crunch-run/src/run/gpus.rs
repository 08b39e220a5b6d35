//! A container's GPUs: granted, fit for what it asks for, and ready to be given to it.

use arvados_client::records::Container;

use super::failure::Failure;
use super::prepare::on_this_node;
use super::settings::Settings;
use crate::engine::{EngineError, gpu, gpu::GpuAccess};
use crate::gpus::{self, Facts};
use crate::logs::{Journal, LogDir, NODE, gpu_info};

/// What it gets, and how the record of the run names it.
#[derive(Debug, Default)]
pub struct Given {
    pub ids: Vec<String>,
    /// Of each of these, where known.
    pub models: Vec<Option<String>>,
}

/// `None` for a container that asks for none.
pub async fn find(
    record: &Container,
    settings: &Settings,
    logs: &LogDir,
    journal: &Journal,
) -> Result<(Option<GpuAccess>, Given), Failure> {
    let wish = &record.runtime_constraints.gpu;
    let never_ran = |error: gpus::GpuError| Failure::NeverRan(error.to_string());
    let env = crate::environment::variable;
    let grant = gpus::grant(wish, settings.gpus.clone(), env).map_err(never_ran)?;
    let Some(grant) = grant else {
        return Ok((None, Given::default()));
    };
    let (access, known) = tokio::join!(
        gpu::access(&grant, &settings.cdi_dirs),
        gpus::of_node(grant.stack)
    );
    let access = access.map_err(|error| {
        let error = EngineError::from(error);
        Failure::of_engine("the container cannot be created", &error)
    })?;
    if !known.is_empty() {
        logs.write(NODE, gpu_info(&known).as_bytes())
            .map_err(|error| on_this_node(&logs.file(NODE), &error))?;
    }
    for remark in gpus::check(wish, grant.stack, &grant.ids, &known).map_err(never_ran)? {
        journal.say(format!("Note: {remark}"));
    }
    let model = |id: &String| gpus::facts_of(id, &known).and_then(|gpu: &Facts| gpu.model.clone());
    let models = grant.ids.iter().map(model).collect();
    let given = Given {
        ids: grant.ids,
        models,
    };
    Ok((Some(access), given))
}
