# A step that fails.
cwlVersion: v1.2
class: Workflow
inputs: {}
outputs:
  text: {type: File, outputSource: fail/text}
steps:
  fail:
    in: {}
    out: [text]
    run:
      class: CommandLineTool
      requirements: {DockerRequirement: {dockerPull: "busybox:test"}}
      baseCommand: [sh, -c, 'echo one; exit 3']
      inputs: {}
      outputs:
        text: {type: stdout}
      stdout: text.txt
