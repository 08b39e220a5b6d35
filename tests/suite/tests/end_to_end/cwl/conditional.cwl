# A step that runs, and one that is left out.
cwlVersion: v1.2
class: Workflow
requirements: {MultipleInputFeatureRequirement: {}}
inputs: {word: string, go: boolean, stay: boolean}
outputs:
  text: {type: File, outputSource: [left_out/text, taken/text], pickValue: the_only_non_null}
steps:
  taken:
    in: {word: word, go: go}
    when: $(inputs.go)
    out: [text]
    run: words.cwl
  left_out:
    in: {word: word, go: stay}
    when: $(inputs.go)
    out: [text]
    run: words.cwl
