# A step that has no room on a small machine beside the runner that waits for it.
cwlVersion: v1.2
class: Workflow
requirements: {ScatterFeatureRequirement: {}}
inputs: {words: "string[]"}
outputs:
  texts: {type: "File[]", outputSource: write/text}
steps:
  write:
    in: {word: words}
    scatter: word
    out: [text]
    hints: {ResourceRequirement: {ramMin: 2600}}
    run: words.cwl
