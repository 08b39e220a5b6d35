# A step whose output is a directory, which the next one reads.
cwlVersion: v1.2
class: Workflow
inputs: {words: "string[]"}
outputs:
  text: {type: File, outputSource: read/text}
steps:
  make:
    in: {words: words}
    out: [files]
    run:
      class: CommandLineTool
      requirements: {DockerRequirement: {dockerPull: "busybox:test"}}
      baseCommand: [sh, -c, 'mkdir -p d/e; echo "$0" >d/first; echo "$1" >d/e/second']
      inputs:
        words: {type: "string[]", inputBinding: {position: 1}}
      outputs:
        files: {type: Directory, outputBinding: {glob: d}}
  read:
    in: {files: make/files}
    out: [text]
    run:
      class: CommandLineTool
      requirements: {DockerRequirement: {dockerPull: "busybox:test"}}
      baseCommand: [sh, -c, 'cat "$0"/first "$0"/e/second']
      inputs:
        files: {type: Directory, inputBinding: {position: 1}}
      outputs:
        text: {type: stdout}
      stdout: read.txt
