# A file that has another one beside it, and one by standard input.
cwlVersion: v1.2
class: CommandLineTool
requirements:
  DockerRequirement: {dockerPull: "busybox:test"}
baseCommand: [sh, -c, 'cat "$0.index"; cat']
inputs:
  data: {type: File, secondaryFiles: [.index], inputBinding: {position: 1}}
  more: {type: File}
stdin: $(inputs.more.path)
outputs:
  text: {type: stdout}
stdout: read.txt
