# Jobs for the pairs of two lists.
cwlVersion: v1.2
class: Workflow
requirements: {ScatterFeatureRequirement: {}}
inputs: {words: "string[]", others: "string[]"}
outputs:
  text: {type: File, outputSource: join/text}
steps:
  write:
    in: {word: words, other: others}
    scatter: [word, other]
    scatterMethod: dotproduct
    out: [text]
    run:
      class: CommandLineTool
      requirements: {DockerRequirement: {dockerPull: "busybox:test"}}
      baseCommand: echo
      inputs:
        word: {type: string, inputBinding: {position: 1}}
        other: {type: string, inputBinding: {position: 2}}
      outputs:
        text: {type: stdout}
      stdout: pair.txt
  join:
    in: {texts: write/text}
    out: [text]
    run: join.cwl
