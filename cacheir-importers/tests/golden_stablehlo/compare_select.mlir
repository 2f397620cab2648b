module @golden {
  func.func public @main(%arg0: tensor<2x3xf32>, %arg1: tensor<2x3xf32>, %arg2: tensor<i1>) -> (tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi1>, tensor<2x3xf32>) {
    %0 = stablehlo.compare  GT, %arg0, %arg1,  FLOAT : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %1 = stablehlo.select %0, %arg0, %arg1 : tensor<2x3xi1>, tensor<2x3xf32>
    %2 = stablehlo.select %arg2, %arg0, %arg1 : tensor<i1>, tensor<2x3xf32>
    %3 = "stablehlo.compare"(%arg0, %arg1) <{comparison_direction = #stablehlo<comparison_direction LE>}> : (tensor<2x3xf32>, tensor<2x3xf32>) -> tensor<2x3xi1>
    %4 = stablehlo.xor %0, %3 : tensor<2x3xi1>
    %cst = stablehlo.constant dense<-5.000000e-01> : tensor<f32>
    %cst_0 = stablehlo.constant dense<0.5> : tensor<f32>
    %5 = stablehlo.clamp %cst, %arg0, %cst_0 : (tensor<f32>, tensor<2x3xf32>, tensor<f32>) -> tensor<2x3xf32>
    return %0, %1, %2, %4, %5 : tensor<2x3xi1>, tensor<2x3xf32>, tensor<2x3xf32>, tensor<2x3xi1>, tensor<2x3xf32>
  }
}
