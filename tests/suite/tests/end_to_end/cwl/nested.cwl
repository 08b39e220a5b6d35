# A workflow whose only step is a workflow with a runner of its own.
cwlVersion: v1.2
class: Workflow
$namespaces: {arv: "http://arvados.org/cwl#"}
requirements: {SubworkflowFeatureRequirement: {}}
inputs: {words: "string[]"}
outputs:
  text: {type: File, outputSource: inner/text}
steps:
  inner:
    in: {words: words}
    out: [text]
    hints: {"arv:SeparateRunner": {}}
    run: scatter.cwl
