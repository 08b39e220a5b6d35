//! Prepares the GPUs of a container: finds the grant, checks it against the request and sets up
//! access.

use arvados_client::records::Container;

use super::{self as gpu, GpuInfo, PreparedGpus};
use crate::attempt::create_container::node_failure;
use crate::attempt::failure::Failure;
use crate::attempt::settings::Settings;
use crate::logs::{LogDir, NODE, RunLog, gpu_info};
use container_engine::EngineError;
use container_engine::gpu::{self as engine_gpu, GpuAccess};

/// Returns no access for a container that requests no GPUs.
pub async fn prepare(
    record: &Container,
    settings: &Settings,
    logs: &LogDir,
    run_log: &RunLog,
) -> Result<(Option<GpuAccess>, PreparedGpus), Failure> {
    let request = &record.runtime_constraints.gpu;
    let never_ran = |error: gpu::GpuError| Failure::NeverRan(error.to_string());
    let env = crate::environment::variable;
    let grant = gpu::grant(request, settings.gpus.clone(), env).map_err(never_ran)?;
    let Some(grant) = grant else {
        return Ok((None, PreparedGpus::default()));
    };
    let cdi_dirs = settings.node.cdi_dirs();
    let (access, gpus) = tokio::join!(
        engine_gpu::access(&grant, &cdi_dirs),
        gpu::list_gpus(grant.stack)
    );
    let access = access.map_err(|error| {
        let error = EngineError::from(error);
        Failure::of_engine("the container cannot be created", &error)
    })?;
    if !gpus.is_empty() {
        logs.write(NODE, gpu_info(&gpus).as_bytes())
            .map_err(|error| node_failure(&logs.file(NODE), &error))?;
    }
    for note in
        gpu::check_requirements(request, grant.stack, &grant.ids, &gpus).map_err(never_ran)?
    {
        run_log.write(format!("Note: {note}"));
    }
    let model = |id: &String| gpu::find_gpu(id, &gpus).and_then(|gpu: &GpuInfo| gpu.model.clone());
    let models = grant.ids.iter().map(model).collect();
    let prepared = PreparedGpus {
        ids: grant.ids,
        models,
    };
    Ok((Some(access), prepared))
}
